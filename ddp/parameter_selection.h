#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddp/reducer/options.h"
#include "ddp/reducer/reducer.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::ddp {

/// Returns true if `name` matches `pattern`: "*" matches any text including
/// dots, "?" one character.
bool matches_name(const std::string& pattern, const std::string& name);

/// The handling of each tensor of a module by DistributedDataParallel.
struct ParameterSelection {
  /// All parameters that are not ignored, including frozen ones.
  std::vector<data_parallel::NamedTensor> parameters;
  /// All buffers that are not ignored.
  std::vector<data_parallel::NamedTensor> buffers;
  /// The trained ones among `parameters`.
  std::vector<ReducedParameter> reduced;
  /// The groups of `reduced`. The first one is the replicas.
  std::vector<ReductionGroup> groups;
  /// The parameters that are computed with in low precision, including frozen
  /// ones.
  std::vector<at::Tensor> cast;
};

/// Applies the options to a module's parameters and buffers.
/// Throws: c10::ValueError naming the option and the name in it that does not
/// exist, is not a trained parameter, or cannot be reduced over its ranks.
ParameterSelection select_parameters(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options);

/// Returns the current buffers of `module` that are not ignored.
std::vector<data_parallel::NamedTensor> select_buffers(
    const torch::nn::Module& module,
    const DistributedDataParallelOptions& options);

} // namespace weft::ddp
