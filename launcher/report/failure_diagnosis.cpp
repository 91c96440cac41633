#include "launcher/report/failure_diagnosis.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include <signal.h>

namespace weft::launcher {
namespace {

bool contains_any(std::string_view text, auto&& stderr_text) {
  return std::ranges::any_of(stderr_text, [&](std::string_view word) {
    return std::ranges::search(text, word, [](char a, char b) {
             return std::tolower(static_cast<unsigned char>(a)) == b;
           }).size() == word.size();
  });
}

// Returns true if another process, or a fault, ended the worker. Its messages
// then do not have the cause.
bool was_killed(const WorkerExit& exit) {
  return exit.signal != 0 && exit.signal != SIGABRT;
}

FailureCause of(base::ErrorCause cause) {
  switch (cause) {
    case base::ErrorCause::kLostPeer:
      return FailureCause::kLostPeer;
    case base::ErrorCause::kTimedOut:
      return FailureCause::kTimedOut;
    case base::ErrorCause::kOutOfMemory:
      return FailureCause::kBadAlloc;
    case base::ErrorCause::kOther:
      break;
  }
  return FailureCause::kNone;
}

/// Returns the cause that the worker wrote to its error file. Other programs
/// write none, so their message or, without one, the last lines of standard
/// error decide.
FailureCause find(const WorkerExit& exit, const ReportSources& sources) {
  if (exit.error.cause && !was_killed(exit)) {
    return of(*exit.error.cause);
  }
  std::string last_lines;
  for (const auto& line : sources.tail(exit.rank).lines()) {
    last_lines += line + '\n';
  }
  const auto& message = exit.error.message;
  const FailureCause by_lines = diagnose_stderr(exit, last_lines);
  // The message of a crash handler has SIGABRT, and not its reason.
  const bool by_message =
      !message.empty() && by_lines != FailureCause::kBadAlloc;
  return by_message ? diagnose_stderr(exit, message) : by_lines;
}

} // namespace

FailureCause diagnose_stderr(
    const WorkerExit& exit,
    std::string_view stderr_text) {
  constexpr std::array<std::string_view, 7> kLostPeerWords{
      "connection reset by peer",
      "connection closed",
      "closed by peer",
      "socket closed",
      "broken pipe",
      "a peer is gone",
      "peer lost"};
  constexpr std::array<std::string_view, 1> kTimedOutWords{"timed out after"};
  constexpr std::array<std::string_view, 3> kNoMemoryWords{
      "bad_alloc", "can't allocate memory", "out of memory"};
  if (was_killed(exit)) {
    return FailureCause::kNone;
  }
  if ((exit.signal == SIGABRT || exit.code == kNoMemory) &&
      contains_any(stderr_text, kNoMemoryWords)) {
    return FailureCause::kBadAlloc;
  }
  if (exit.code == kPeerLost && contains_any(stderr_text, kTimedOutWords)) {
    return FailureCause::kTimedOut;
  }
  return exit.code == kPeerLost || contains_any(stderr_text, kLostPeerWords)
             ? FailureCause::kLostPeer
             : FailureCause::kNone;
}

void diagnose_failures(
    Outcome& outcome,
    const ReportSources& sources,
    OomMonitor& memory) {
  for (auto& exit : outcome.exits) {
    if (exit.code == 0) {
      continue;
    }
    exit.failure_cause = find(exit, sources);
    memory.explain(exit);
  }
}

} // namespace weft::launcher
