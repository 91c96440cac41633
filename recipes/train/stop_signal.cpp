#include "recipes/train/stop_signal.h"

#include <csignal>

namespace weft::recipes {
namespace {

// All that a handler may touch.
volatile std::sig_atomic_t signal_has_come = 0;

void remember_signal(int /*signal*/) {
  signal_has_come = 1;
}

} // namespace

StopSignal::StopSignal() {
  signal_has_come = 0;
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
  return signal_has_come != 0;
}

} // namespace weft::recipes
