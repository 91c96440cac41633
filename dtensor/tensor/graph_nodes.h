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

/// Makes `output` the result of a new node of type T that has `input` as its
/// only input.
template <class T>
T* record(const at::Tensor& input, at::Tensor& output) {
  auto [pointer, node] = make_node<T>();
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::create_gradient_edge(output, std::move(pointer));
  return node;
}

/// The impl of a gradient that has to be a DTensor.
DTensorImpl& require_dtensor_gradient(
    const at::Tensor& grad,
    const char* node_name);

/// Whether somebody but the caller may hold the memory of a gradient: see
/// Note [Gradients that share memory].
bool is_shared_gradient(const at::Tensor& grad);
/// What `node` may return of a result that lies in the memory of `grad`, which
/// others may hold.
at::Tensor share_gradient(
    const torch::autograd::Node& node,
    const at::Tensor& grad,
    at::Tensor result);

/// In which dtypes values travel: forward, and their gradients backward; the
/// tensor's own where nothing is said.
struct CommDtypes {
  std::optional<at::ScalarType> forward = std::nullopt;
  std::optional<at::ScalarType> backward = std::nullopt;

  bool operator==(const CommDtypes&) const = default;
};

/// redistribute() to a spec of any mesh of the tensor's ranks: values are cast
/// to `comm_dtypes.forward`, moved, and cast to `result`. Differentiable.
at::Tensor redistribute_as(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    at::ScalarType result,
    const CommDtypes& comm_dtypes = {},
    bool is_implicit = false);

/// The same to another spec, by `move`, which returns this rank's part. Below
/// autograd it is called.
at::Tensor redistribute_by(
    const std::function<at::Tensor()>& move,
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    bool is_implicit);

/// Makes `output`, which has the values of `input`, its result in the graph.
void record_redistribution(
    const at::Tensor& input,
    at::Tensor& output,
    std::string_view name,
    const CommDtypes& comm_dtypes,
    bool is_implicit = false);

/// After redistribute_as(): from now on a node of its own sends `output`'s
/// gradient. See Note [Deferred weight gradients].
void send_gradient_early(at::Tensor& output);
/// The place in backward's order behind `node`, if that sends a gradient.
std::optional<uint64_t> sequence_nr_of(const torch::autograd::Node* node);

} // namespace weft::dtensor
