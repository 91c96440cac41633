#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// Calls back whenever a backward has added to a parameter's gradient, once a
/// backward and parameter, on the thread that runs the backward. Nothing is
/// called after this object is gone.
class GradientHooks {
 public:
  /// Gets the parameter's index.
  using Callback = std::function<void(size_t)>;

  /// `parameters` are leaves that require gradients.
  GradientHooks(const std::vector<at::Tensor>& parameters, Callback callback);
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::ddp
