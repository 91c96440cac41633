#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dtensor/spec/placement.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

struct LinearAdapter;

/// Where an op that uses a parameter takes its input and leaves its output;
/// empty: the op's own choice. Placements are those of the parameter's mesh.
struct OpLayout {
  /// How a plain input is taken to lie; a norm also brings others there.
  std::optional<Placements> input;
  /// Where the input is brought before the op.
  std::optional<Placements> desired_input;
  std::optional<Placements> output;
  /// Of a linear with a whole weight: Partial where the ranks use different
  /// parts of the whole output (heads of keys that several queries share), so
  /// that nothing is reduced before the gradients of weight and input are. The
  /// input is brought to every rank.
  std::optional<Placements> output_grad;
};

/// What is known of a parameter beside its value: set by tensor-parallel
/// styles and by whoever names parameters, read by kernels and messages.
struct ParameterInfo {
  /// The fully qualified name, e.g. "model.layers.0.self_attn.q_proj.weight".
  std::string fqn;
  OpLayout linear;
  OpLayout embedding;
  OpLayout norm;
  /// What linear() with this weight adds to its product; null: nothing.
  std::shared_ptr<const LinearAdapter> adapter;
  /// Somebody else (ddp/) brings a Partial gradient to this parameter's
  /// placement; the callback at the end of backward leaves it alone.
  bool gradient_reduced_by_ddp = false;
  /// match_gradient_placement() has been here.
  bool matches_gradient_placement = false;
};

/// The info of a DTensor, made at the first call.
ParameterInfo& parameter_info(const at::Tensor& dtensor);
/// The name of a DTensor parameter, or "".
std::string parameter_name(const at::Tensor& tensor);

} // namespace weft::dtensor
