#include "mesh/watchdog/activity.h"

#include <atomic>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

// Static, because a rank of a training run is one process. The two values may
// not match for a moment, which does no harm in a message.
std::atomic<const char*> noted_activity{nullptr};
std::atomic<int64_t> noted_step{0};

} // namespace

void note_activity(const char* what, int64_t step) {
  noted_step.store(step, std::memory_order_relaxed);
  noted_activity.store(what, std::memory_order_relaxed);
}

std::string activity_text() {
  const char* what = noted_activity.load(std::memory_order_relaxed);
  return what == nullptr ? std::string()
                         : detail::concat(
                               what,
                               " of step ",
                               noted_step.load(std::memory_order_relaxed));
}

} // namespace weft::mesh
