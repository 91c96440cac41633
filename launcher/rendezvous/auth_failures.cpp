#include "launcher/rendezvous/auth_failures.h"

#include <fmt/format.h>

namespace weft::launcher {
namespace {

constexpr std::chrono::seconds kBetweenNotes{10};
/// Who can choose an address could make each refusal a new one.
constexpr size_t kMostAtOnce = 16;

const char* describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::kTooMany:
      return "too many at once";
    case Refusal::kNoAnswer:
      return "no answer";
    case Refusal::kLate:
      return "no answer in time";
    case Refusal::kNoWeftrun:
      return "no weftrun";
    case Refusal::kEarlierStart:
      return "of an earlier start";
    case Refusal::kOtherToken:
      return "another token";
    case Refusal::kOtherJob:
      return "another --rdzv-id";
  }
  return "";
}

const char* way_out(Refusal refusal) {
  switch (refusal) {
    case Refusal::kOtherToken:
      return ". If it belongs to this run, copy host 0's --token-file to it "
             "and start weftrun there again";
    case Refusal::kOtherJob:
      return ". If it belongs to this run, give it host 0's --rdzv-id";
    default:
      return "";
  }
}

} // namespace

Refusals::Refusals(Say say) : say_(std::move(say)) {}

void Refusals::note(const std::string& host, Refusal refusal) {
  const std::string who = fmt::format(
      "{} ({})", host.empty() ? "somebody" : host, describe(refusal));
  if (refusal == Refusal::kOtherToken || refusal == Refusal::kOtherJob) {
    likely_host_ = who;
  }
  const auto now = Clock::now();
  const bool is_new =
      said_.size() < kMostAtOnce && said_.emplace(host, refusal).second;
  ++unsaid_;
  if (!is_new && now < next_note_) {
    return;
  }
  say_(fmt::format(
      "weftrun: refused at the gate: {}{}{}\n",
      who,
      unsaid_ > 1 ? fmt::format(", and {} others before", unsaid_ - 1) : "",
      way_out(refusal)));
  unsaid_ = 0;
  next_note_ = now + kBetweenNotes;
}

} // namespace weft::launcher
