#include "dtensor/scopes/autocast.h"

#include <memory>
#include <string_view>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mesh/communicator/scope_kind.h"

namespace weft::dtensor {
namespace {

struct AutocastState : c10::DebugInfoBase {
  c10::DeviceType device;
  c10::ScalarType dtype;
  bool enabled;

  AutocastState(c10::DeviceType type, c10::ScalarType to, bool on)
      : device(type), dtype(to), enabled(on) {}
};

constexpr std::string_view kAutocastScope = "WEFT_DTENSOR_AUTOCAST";

c10::DebugInfoKind autocast_kind() {
  return mesh::scope_kind(&kAutocastScope, 0x5a);
}

} // namespace

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      outer_dtype_(at::autocast::get_autocast_dtype(device)),
      outer_enabled_(at::autocast::is_autocast_enabled(device)),
      guard_(
          autocast_kind(),
          std::make_shared<AutocastState>(device, dtype, enabled)) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_, outer_dtype_);
}

namespace detail {

// In an enabled scope, autocast is disabled while one of its kernels casts.
bool is_cast_of_autocast(c10::DeviceType device, c10::ScalarType dtype) {
  const auto* scope = static_cast<const AutocastState*>(
      c10::ThreadLocalDebugInfo::get(autocast_kind()));
  return scope && scope->enabled && scope->device == device &&
         scope->dtype == dtype && !at::autocast::is_autocast_enabled(device) &&
         !torch::autograd::get_current_node();
}

} // namespace detail
} // namespace weft::dtensor
