#include "launcher/rendezvous/messages.h"
#include "launcher/process/outcome.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/failure_line.h"
#include "launcher/connection/key.h"

namespace weft::launcher {

using nlohmann::json;
using std::chrono::milliseconds;

namespace {

constexpr Range kExitCodes{0, 255};
/// A longer time is not from a weftrun.
constexpr Range kMilliseconds{0, 24 * 60 * 60 * 1000};

/// Returns the ERROR line of a failure, or a general one if the peer sent none.
std::string error_line(int code, const std::string& line) {
  return code == 0 || base::FailureLine::parse(line)
             ? line
             : failure_line(code, "failed");
}

} // namespace

int int_of(const json& message, const char* name, int otherwise, Range range) {
  const auto found = message.find(name);
  if (found == message.end() || !found->is_number_integer()) {
    return otherwise;
  }
  const auto value = found->get<int64_t>();
  return value < range.least || value > range.most ? otherwise
                                                   : static_cast<int>(value);
}

std::string text_of(const json& message, const char* name) {
  const auto found = message.find(name);
  return found != message.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
}

json to_message(const HostResult& end) {
  return {
      {"type", "end"},
      {"code", end.code},
      {"signal", end.signal},
      {"lost_peer", end.lost_peer ? 1 : 0},
      {"age_ms", end.age.count()},
      {"line", end.line.substr(0, 8192)}};
}

HostResult read_end(const json& message) {
  HostResult end{
      .code = int_of(message, "code", 1, kExitCodes),
      .signal = int_of(message, "signal", 0, kSignals),
      .lost_peer = int_of(message, "lost_peer", 0) != 0,
      .age = milliseconds(int_of(message, "age_ms", 0, kMilliseconds)),
      .line = text_of(message, "line")};
  end.line = error_line(end.code, end.line);
  return end;
}

std::optional<RankAssignment> read_rank_assignment(
    const json& message,
    int worker_count) {
  constexpr Range kCounts{0, 1 << 24};
  RankAssignment place;
  place.node_rank = int_of(message, "node", -1, kCounts);
  place.node_count = int_of(message, "nodes", 0, kCounts);
  place.first_rank = int_of(message, "first", -1, kCounts);
  place.world_size = int_of(message, "world", 0, kCounts);
  place.restart_count = int_of(message, "restarts", 0, kCounts);
  const bool fits = place.node_rank > 0 && place.node_rank < place.node_count &&
                    place.first_rank > 0 &&
                    place.first_rank + worker_count <= place.world_size;
  return fits ? std::optional(place) : std::nullopt;
}

json to_message(const RunResult& run_result) {
  const auto delay = run_result.restart_after.value_or(milliseconds(-1));
  return {
      {"type", "verdict"},
      {"code", run_result.code},
      {"line", run_result.line},
      {"note", run_result.note},
      {"restart_ms", delay.count()}};
}

RunResult read_result(const json& message) {
  RunResult run_result;
  run_result.code = int_of(message, "code", 2, kExitCodes);
  run_result.line = error_line(run_result.code, text_of(message, "line"));
  run_result.note = text_of(message, "note");
  const int delay = int_of(message, "restart_ms", -1, kMilliseconds);
  if (delay >= 0) {
    run_result.restart_after = milliseconds(delay);
  }
  return run_result;
}

std::string command_digest(const Options& options) {
  std::string text;
  for (const auto& word : options.command) {
    text += word;
    text += '\0';
  }
  return to_hex(sha256(text));
}

} // namespace weft::launcher
