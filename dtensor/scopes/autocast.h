#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::dtensor {

/// Scope in which libtorch's autocast is on for ops of this thread. The ops of
/// its lists cast their inputs, for plain tensors and DTensors alike. Data for
/// such an op is cast before it is communicated, and an input of several ops
/// (q, k and v) is cast and communicated once. The casts of weights end with
/// the outermost scope, so that the next one uses the updated weights. Scopes
/// nest; `enabled = false` disables autocast inside another scope.
/// torch::autocast's own switches (at::autocast::set_autocast_enabled) work on
/// DTensors as well, but without sharing.
/// Source: torch/amp/autocast_mode.py.
class Autocast {
 public:
  /// Sets the dtype of ops on `device`. The destructor restores the setting.
  explicit Autocast(
      c10::DeviceType device,
      c10::ScalarType dtype = c10::ScalarType::BFloat16,
      bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool outer_enabled_;
  c10::DebugInfoGuard guard_;
};

namespace detail {
/// Returns true if this is a cast made by autocast's kernels in an Autocast
/// scope of that device and dtype.
bool is_cast_of_autocast(c10::DeviceType device, c10::ScalarType dtype);
} // namespace detail

} // namespace weft::dtensor
