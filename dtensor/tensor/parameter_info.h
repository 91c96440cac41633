#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dtensor/spec/placement.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

struct LinearAdapter;

/// The placements of input and output of an op that uses a parameter, on the
/// parameter's mesh. Empty means the op's own choice.
struct OpLayout {
  /// The assumed placement of a plain input. A norm also redistributes other
  /// inputs to it.
  std::optional<Placements> input;
  /// The placement to which the input is redistributed before the op.
  std::optional<Placements> desired_input;
  std::optional<Placements> output;
  /// For a linear with a replicated weight: Partial if the ranks use different
  /// parts of the output (key heads that several queries share), so that
  /// nothing is reduced before the gradients of weight and input. The input is
  /// replicated.
  std::optional<Placements> output_grad;
};

/// Information about a parameter in addition to its value. Tensor-parallel
/// styles and modules set it; kernels and messages read it.
struct ParameterInfo {
  /// The fully qualified name, e.g. "model.layers.0.self_attn.q_proj.weight".
  std::string fqn;
  OpLayout linear;
  OpLayout embedding;
  OpLayout norm;
  /// The adapter whose result linear() adds. Null if there is none.
  std::shared_ptr<const LinearAdapter> adapter;
  /// True if ddp/ redistributes this parameter's Partial gradient, so that the
  /// callback at the end of backward skips it.
  bool gradient_reduced_by_ddp = false;
  /// The parameter's name in the module that fully_shard() made a unit of, and
  /// that module's type, for errors. Empty if there is none.
  std::string fsdp_unit;
  /// True after match_gradient_placement() was called.
  bool matches_gradient_placement = false;
};

/// Returns the information of a DTensor, created at the first call.
ParameterInfo& parameter_info(const at::Tensor& dtensor);
/// Returns the name of a DTensor parameter, or "".
std::string parameter_name(const at::Tensor& tensor);

} // namespace weft::dtensor
