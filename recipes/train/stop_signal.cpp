#include "recipes/train/stop_signal.h"

#include <atomic>

namespace weft::recipes {
namespace {

// All that the handler touches, on whatever thread it runs.
std::atomic<bool> signal_has_come{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void remember_signal(int /*signal*/) {
  signal_has_come = true;
}

} // namespace

StopSignal::StopSignal() {
  signal_has_come = false;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  // A save that is under way is not disturbed.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &before_);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &before_, nullptr);
}

bool StopSignal::has_come() {
  return signal_has_come;
}

} // namespace weft::recipes
