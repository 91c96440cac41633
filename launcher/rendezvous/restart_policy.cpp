#include "launcher/rendezvous/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstDelay = seconds(1);
constexpr milliseconds kMostDelay = seconds(30);
/// An attempt that ran for so long was no failure to start.
constexpr milliseconds kLasting = seconds(60);

} // namespace

bool is_worth_a_restart(int code) {
  return code == 1 || code >= 128;
}

void Restarts::decide(Verdict& verdict, milliseconds lasted) {
  if (verdict.code == 0 || most_ == 0) {
    return;
  }
  if (!is_worth_a_restart(verdict.code)) {
    verdict.note = fmt::format(
        "weftrun: not restarted: exit code {} says that it would end alike\n",
        verdict.code);
    return;
  }
  if (lasted >= kLasting) {
    delay_ = milliseconds(0);
    first_.reset();
  }
  if (!first_) {
    first_ = {count_, verdict.code, verdict.line};
  }
  if (count_ < most_) {
    delay_ = std::clamp(2 * delay_, kFirstDelay, kMostDelay);
    ++count_;
    verdict.restart_after = delay_;
    verdict.note = fmt::format(
        "weftrun: restart {} of {} in {} s\n",
        count_,
        most_,
        delay_.count() / 1000);
    return;
  }
  verdict.note = fmt::format(
      "weftrun: {} restarts did not help; the first error, of attempt {}:\n",
      most_,
      first_->attempt);
  verdict.code = first_->code;
  verdict.line = first_->line;
}

} // namespace weft::launcher
