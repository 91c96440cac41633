#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::data_parallel {

/// The owner of a post-accumulate-grad hook.
enum class HookOwner { kReducer, kOptimizer, kFullyShard };

/// Calls back after a backward has accumulated a parameter's gradient, once per
/// backward and parameter, on the thread that runs the backward. No callback
/// runs after this object is destroyed.
class GradientHooks {
 public:
  /// Receives the parameter's index.
  using Callback = std::function<void(size_t)>;

  /// `parameters` are leaves that require gradients. `owner` is the object that
  /// owners_of() returns.
  GradientHooks(
      const std::vector<at::Tensor>& parameters,
      Callback callback,
      HookOwner hook_owner,
      std::weak_ptr<void> owner = {});
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  /// Returns the owners of a parameter's current hooks, newest first.
  static std::vector<std::shared_ptr<void>> owners_of(
      const at::Tensor& parameter,
      HookOwner hook_owner);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::data_parallel
