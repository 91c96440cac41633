#include "mesh/bootstrap/cancellation.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "mesh/error/error.h"
#include "mesh/error/resource_limits.h"

namespace weft::mesh {

Cancellation::Cancellation() : state_(std::make_shared<State>()) {
  state_->event = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state_->event) {
    const int error = errno;
    throw_error<CommError>(detail::concat(
        "[world] eventfd: ", std::strerror(error), limit_behind(error)));
  }
}

void Cancellation::cancel(const std::string& reason) const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->reason.empty()) {
    return;
  }
  state_->reason = reason;
  state_->changed.notify_all();
  const uint64_t once = 1;
  [[maybe_unused]] const auto written =
      ::write(state_->event.get(), &once, sizeof(once));
}

bool Cancellation::is_cancelled() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->reason.empty();
}

void Cancellation::check() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->reason.empty()) {
    throw_error<CommError>(state_->reason);
  }
}

void Cancellation::wait_until(const std::function<bool()>& is_done) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(
      lock, [&] { return is_done() || !state_->reason.empty(); });
}

} // namespace weft::mesh
