#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::dtensor {

/// While one lives, libtorch's autocast is on for ops of this thread: those of
/// its lists cast their inputs, of plain tensors and DTensors alike. What moves
/// between ranks for such an op is cast before it moves. An input that several
/// ops ask for (q, k and v) is cast once and moved once. The casts of weights
/// end with the outermost scope, so the next one sees what the optimizer made
/// of them. Scopes nest; `enabled = false` inside another is none.
/// torch::autocast's own switches (at::autocast::set_autocast_enabled) work on
/// DTensors as well, but for the sharing.
/// Source: torch/amp/autocast_mode.py.
class Autocast {
 public:
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
/// Whether this is a cast that autocast's kernels make, inside an Autocast
/// scope of that device and dtype.
bool is_cast_of_autocast(c10::DeviceType device, c10::ScalarType dtype);
} // namespace detail

} // namespace weft::dtensor
