#pragma once

#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "dtensor/scopes/module_call.h"

namespace weft::ddp {

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

} // namespace weft::ddp
