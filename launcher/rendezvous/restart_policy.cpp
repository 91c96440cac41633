#include "launcher/rendezvous/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstDelay = seconds(1);
constexpr milliseconds kMaxDelay = seconds(30);

} // namespace

bool is_retryable(int code) {
  return code == 1 || code >= 128;
}

void RestartPolicy::decide(RunResult& run_result, milliseconds lasted) {
  if (run_result.code == 0 || max_ == 0) {
    return;
  }
  if (!is_retryable(run_result.code)) {
    run_result.note = fmt::format(
        "not restarted: exit code {} is not retried", run_result.code);
    return;
  }
  if (lasted >= lasting_) {
    delay_ = milliseconds(0);
    first_.reset();
  }
  if (!first_) {
    first_ = {count_, run_result.code, run_result.line};
  }
  if (count_ < max_) {
    delay_ = std::clamp(2 * delay_, kFirstDelay, kMaxDelay);
    ++count_;
    run_result.restart_after = delay_;
    run_result.note = fmt::format(
        "restart {} of {} in {} s", count_, max_, delay_.count() / 1000);
    return;
  }
  run_result.note = fmt::format(
      "{} restarts did not help; the first error, of attempt {}:",
      max_,
      first_->attempt);
  run_result.code = first_->code;
  run_result.line = first_->line;
}

} // namespace weft::launcher
