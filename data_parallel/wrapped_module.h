#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "dtensor/scopes/module_call.h"

namespace weft::data_parallel {

// What wrappers of a module share that are called like it.

/// Scope in which backward passes of its wrapper accumulate each rank's own
/// gradients. The next backward outside the scope reduces the sum. The time of
/// backward() counts.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(std::shared_ptr<std::atomic<int>> paused)
      : paused_(std::move(paused)) {
    ++*paused_;
  }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;
  ~NoSyncGuard() { --*paused_; }

 private:
  std::shared_ptr<std::atomic<int>> paused_;
};

/// Casts a floating point tensor to `dtype`, if that is set. Returns other
/// tensors unchanged.
inline at::Tensor cast_floating_point(
    const at::Tensor& tensor,
    std::optional<c10::ScalarType> dtype) {
  return dtype && tensor.defined() && tensor.is_floating_point()
             ? tensor.to(*dtype)
             : tensor;
}

/// Casts an argument of forward() that is a tensor or a vector of tensors.
/// Returns other arguments unchanged.
template <class Arg>
decltype(auto) cast_argument(Arg&& arg, std::optional<c10::ScalarType> dtype) {
  using Plain = std::decay_t<Arg>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    return cast_floating_point(arg, dtype);
  } else if constexpr (std::is_same_v<Plain, std::vector<at::Tensor>>) {
    std::vector<at::Tensor> result;
    for (const auto& each : arg) {
      result.push_back(cast_floating_point(each, dtype));
    }
    return result;
  } else {
    return std::forward<Arg>(arg);
  }
}

/// Calls module->forward(args...), with the module's hooks if the first
/// argument and the result are tensors.
template <class M>
auto call_wrapped(const std::shared_ptr<M>& module) {
  return module->forward();
}
template <class M, class First, class... Rest>
auto call_wrapped(
    const std::shared_ptr<M>& module,
    First&& first,
    Rest&&... rest) {
  using Result = decltype(module->forward(
      std::forward<First>(first), std::forward<Rest>(rest)...));
  if constexpr (
      std::is_convertible_v<First, const at::Tensor&> &&
      std::is_same_v<Result, at::Tensor>) {
    return dtensor::call(module, first, std::forward<Rest>(rest)...);
  } else {
    return module->forward(
        std::forward<First>(first), std::forward<Rest>(rest)...);
  }
}

} // namespace weft::data_parallel
