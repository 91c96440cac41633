#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <torch/torch.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

// A node's owning pointer: shared_ptr up to torch 2.13, intrusive_ptr later.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(
    std::declval<const at::Tensor&>()));

template <class T, class... Args>
std::pair<NodePointer, T*> make_node(Args&&... args) {
  using torch::autograd::Node;
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    auto* node = new T(std::forward<Args>(args)...);
    return {NodePointer(node, [](Node* n) { delete n; }), node};
  } else {
    auto pointer = c10::make_intrusive<T>(std::forward<Args>(args)...);
    auto* node = pointer.get();
    return {std::move(pointer), node};
  }
}

inline bool records_graph(const at::Tensor& input) {
  return at::GradMode::is_enabled() && input.requires_grad();
}

/// Makes `output` the result of a new node of type T with the only input
/// `input`.
template <class T>
T* record(const at::Tensor& input, at::Tensor& output) {
  auto [pointer, node] = make_node<T>();
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::create_gradient_edge(output, std::move(pointer));
  return node;
}

/// Returns the implementation of a gradient, which must be a DTensor.
DTensorImpl& require_dtensor_gradient(
    const at::Tensor& grad,
    const char* node_name);

/// Returns true if a gradient's memory may have an owner other than the caller.
/// See Note [Gradients that share memory].
bool is_shared_gradient(const at::Tensor& grad);
/// Returns the result that `node` may return if it shares the memory of `grad`,
/// which may have other owners.
at::Tensor share_gradient(
    const torch::autograd::Node& node,
    const at::Tensor& grad,
    at::Tensor result);

/// The dtypes in which values and gradients are communicated. Empty means the
/// tensor's dtype.
struct CommDtypes {
  std::optional<at::ScalarType> forward = std::nullopt;
  std::optional<at::ScalarType> backward = std::nullopt;

  bool operator==(const CommDtypes&) const = default;
};

/// Redistributes to a spec on any mesh of the tensor's ranks: casts to
/// `comm_dtypes.forward`, redistributes, and casts to `result`. Differentiable.
at::Tensor redistribute_as(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    at::ScalarType result,
    const CommDtypes& comm_dtypes = {},
    bool is_implicit = false);

/// Redistributes to another spec with `move`, which returns this rank's part
/// and is called below autograd.
at::Tensor redistribute_by(
    const std::function<at::Tensor()>& move,
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    bool is_implicit);

/// Records `output`, which has the values of `input`, as its result in the
/// graph.
void record_redistribution(
    const at::Tensor& input,
    at::Tensor& output,
    std::string_view name,
    const CommDtypes& comm_dtypes,
    bool is_implicit = false);

/// Adds a node that sends the gradient of `output` early. Called after
/// redistribute_as(). See Note [Deferred weight gradients].
void send_gradient_early(at::Tensor& output);
/// Returns the position in backward's order after `node`, if it sends a
/// gradient.
std::optional<uint64_t> sequence_nr_of(const torch::autograd::Node* node);

} // namespace weft::dtensor
