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

/// Whether `name` is `pattern`, in which "*" stands for any text, dots too, and
/// "?" for a character.
bool matches_name(const std::string& pattern, const std::string& name);

/// What DistributedDataParallel does with each tensor of a module.
struct ParameterSelection {
  /// Neither ignored; frozen ones too.
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  /// Those of `parameters` that are trained.
  std::vector<ReducedParameter> reduced;
  /// Of `reduced`; the first is over the replicas.
  std::vector<ReductionGroup> groups;
  /// The parameters that are computed with in low precision, frozen ones too.
  std::vector<at::Tensor> cast;
};

/// Applies the options to a module's parameters and buffers.
/// Throws: c10::ValueError naming the option and what it names that does not
/// exist, is no trained parameter or cannot be reduced over its ranks.
ParameterSelection select_parameters(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options);

/// The buffers of `module` that are not ignored, as they are now.
std::vector<NamedTensor> select_buffers(
    const torch::nn::Module& module,
    const DistributedDataParallelOptions& options);

} // namespace weft::ddp
