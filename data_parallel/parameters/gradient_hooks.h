#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// Who listens to a parameter's gradient.
enum class HookOwner { kReducer, kOptimizer, kFullyShard };

/// Calls back whenever a backward has added to a parameter's gradient, once a
/// backward and parameter, on the thread that runs the backward. Nothing is
/// called after this object is gone.
class GradientHooks {
 public:
  /// Gets the parameter's index.
  using Callback = std::function<void(size_t)>;

  /// `parameters` are leaves that require gradients. `owner` is what
  /// owners_of() gives.
  GradientHooks(
      const std::vector<at::Tensor>& parameters,
      Callback callback,
      HookOwner hook_owner,
      std::weak_ptr<void> owner = {});
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  /// Owners of the hooks that listen to a parameter now, the latest first.
  static std::vector<std::shared_ptr<void>> owners_of(
      const at::Tensor& parameter,
      HookOwner hook_owner);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::ddp
