#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// A function of tensors, which are all plain.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct LocalMapOptions {
  /// How each input has to lie; nullopt for a plain tensor. Empty: any way.
  std::vector<std::optional<Placements>> in_placements = {};
  /// Where each input's local gradient lies. Nullopt or empty: as the input
  /// does, but Partial where that is Replicate beside an output that is cut or
  /// pending along the mesh dim, since each rank's is a term of the sum then.
  /// (PyTorch takes it to be replicated, and replicas drift apart.)
  std::vector<std::optional<Placements>> in_grad_placements = {};
  /// By default the first DTensor's.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
  /// Redistribute an input that lies elsewhere; otherwise it is an error.
  bool redistribute_inputs = false;
  /// Global sizes of each output; without them they follow from the ranks'
  /// parts, which are compared (see local_map()).
  std::vector<std::vector<int64_t>> out_sizes = {};
};

/// A function that runs `function` on this rank's parts of its inputs and takes
/// what it returns as parts of tensors that lie as `out_placements` say (one an
/// output). Differentiable. Plain inputs are handed on as they are; without any
/// DTensor among the inputs, outputs stay plain.
/// Collective: the calls, over the mesh: an output that is cut is of the sizes
/// that all ranks' parts add up to, so they are exchanged where an input is cut
/// unevenly and `out_sizes` does not say them (two mesh dims that cut one dim
/// of an output need them). Otherwise parts are taken to be of equal size.
/// Throws: c10::ValueError naming the input, where it does not lie as
/// in_placements say; or where it is replicated and learns, another input is
/// cut, all outputs are replicated, and in_grad_placements do not say whether
/// the function adds up its gradient.
/// Source: torch/distributed/tensor/experimental/_func_map.py.
TensorFunction local_map(
    TensorFunction function,
    std::vector<Placements> out_placements,
    LocalMapOptions options = {});

/// The same for a function of single tensors with one result:
///   auto mm = local_map(
///       [](const at::Tensor& w, const at::Tensor& x) { return w.mm(x); },
///       Placements{Partial()});
///   auto y = mm(w, x);
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
