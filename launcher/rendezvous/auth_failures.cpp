#include "launcher/rendezvous/auth_failures.h"

#include <fmt/format.h>

namespace weft::launcher {
namespace {

constexpr std::chrono::seconds kBetweenNotes{10};
/// The most distinct refusals that are logged at once. Without a limit, a peer
/// that can choose its address could make each refusal a new one.
constexpr size_t kMaxAtOnce = 16;

const char* describe(AuthFailure refusal) {
  switch (refusal) {
    case AuthFailure::kTooMany:
      return "too many at once";
    case AuthFailure::kNoAnswer:
      return "no answer";
    case AuthFailure::kLate:
      return "no answer in time";
    case AuthFailure::kNoWeftrun:
      return "no weftrun";
    case AuthFailure::kEarlierStart:
      return "of an earlier start";
    case AuthFailure::kOtherToken:
      return "another token";
    case AuthFailure::kOtherJob:
      return "another --rdzv-id";
  }
  return "";
}

const char* remedy(AuthFailure refusal) {
  switch (refusal) {
    case AuthFailure::kOtherToken:
      return ". If that host belongs to this run, copy host 0's --token-file "
             "to it and start weftrun there again";
    case AuthFailure::kOtherJob:
      return ". If that host belongs to this run, start weftrun there with "
             "host 0's --rdzv-id";
    default:
      return "";
  }
}

} // namespace

AuthFailureLog::AuthFailureLog(base::Logger log) : log_(std::move(log)) {}

void AuthFailureLog::note(const std::string& host, AuthFailure refusal) {
  const std::string who = fmt::format(
      "{} ({})", host.empty() ? "an unknown host" : host, describe(refusal));
  if (refusal == AuthFailure::kOtherToken ||
      refusal == AuthFailure::kOtherJob) {
    likely_host_ = who;
  }
  const auto now = Clock::now();
  const bool is_new =
      logged_.size() < kMaxAtOnce && logged_.emplace(host, refusal).second;
  ++num_suppressed_;
  if (!is_new && now < next_note_) {
    return;
  }
  log_.warning(fmt::format(
      "refused a connection: {}{}{}",
      who,
      num_suppressed_ > 1
          ? fmt::format(", and {} others before", num_suppressed_ - 1)
          : "",
      remedy(refusal)));
  num_suppressed_ = 0;
  next_note_ = now + kBetweenNotes;
}

} // namespace weft::launcher
