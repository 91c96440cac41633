#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// A function of plain tensors.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// The options of local_map().
struct LocalMapOptions {
  /// The required placements of each input; nullopt for a plain tensor. Empty
  /// allows any placements.
  std::vector<std::optional<Placements>> in_placements = {};
  /// The placements of each input's local gradient. Nullopt or empty means the
  /// placements of the input, except that Replicate becomes Partial if an
  /// output is sharded or Partial along the mesh dim, because each rank's
  /// gradient is then one term of the sum. (PyTorch assumes Replicate, and
  /// replicas diverge.)
  std::vector<std::optional<Placements>> in_grad_placements = {};
  /// The mesh. The default is that of the first DTensor.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
  /// Redistributes an input with other placements. If false, such an input is
  /// an error.
  bool redistribute_inputs = false;
  /// The global sizes of each output. Without them they follow from the ranks'
  /// local sizes, which are then compared (see local_map()).
  std::vector<std::vector<int64_t>> out_sizes = {};
};

/// Returns a function that runs `function` on this rank's local tensors and
/// wraps its results as DTensors with `out_placements` (one per output).
/// Differentiable. Plain inputs are passed through; without a DTensor input the
/// outputs stay plain.
/// Collective: the calls, over the mesh. The size of a sharded output is the
/// sum of the ranks' local sizes. Local sizes are exchanged if an input is
/// sharded unevenly and `out_sizes` does not specify them (`out_sizes` is
/// required if two mesh dims shard one dim of an output). Otherwise local sizes
/// are assumed to be equal.
/// Throws: c10::ValueError naming the input, if its placements are not those of
/// in_placements; or if it is replicated and requires a gradient, another input
/// is sharded, all outputs are replicated, and in_grad_placements does not say
/// whether its gradient is to be summed.
/// Source: torch/distributed/tensor/experimental/_func_map.py.
TensorFunction local_map(
    TensorFunction function,
    std::vector<Placements> out_placements,
    LocalMapOptions options = {});

/// Like local_map() above, for a function of single tensors with one result:
///
///     auto mm = local_map(
///         [](const at::Tensor& w, const at::Tensor& x) { return w.mm(x); },
///         Placements{Partial()});
///     auto y = mm(w, x);
///
template <class Function>
auto local_map(
    Function function,
    Placements out_placements,
    LocalMapOptions options = {}) {
  return [function = std::move(function),
          out_placements = std::move(out_placements),
          options = std::move(options)](const auto&... inputs) -> at::Tensor {
    const auto spread = [&]<size_t... I>(
                            const std::vector<at::Tensor>& locals,
                            std::index_sequence<I...>)
                            ->at::Tensor {
      return function(locals[I]...);
    };
    const TensorFunction flat = [&](const std::vector<at::Tensor>& locals) {
      return std::vector<at::Tensor>{
          spread(locals, std::make_index_sequence<sizeof...(inputs)>())};
    };
    return local_map(flat, std::vector<Placements>{out_placements}, options)(
        std::vector<at::Tensor>{inputs...})[0];
  };
}

} // namespace weft::dtensor
