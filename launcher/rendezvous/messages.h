#pragma once

#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/options/options.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// How often the clock is looked at beside sockets.
inline constexpr std::chrono::milliseconds kTick{20};
/// After how long a wait for hosts is reported, and how long after that again.
inline constexpr std::chrono::milliseconds kFirstNote = std::chrono::seconds(5);
inline constexpr std::chrono::milliseconds kNextNote = std::chrono::seconds(60);

// What launchers tell each other over a ControlConnection. Fields that are
// missing, of another type or out of range read as their defaults.

struct Range {
  int least;
  int most;
};
constexpr Range kAnyInt{
    std::numeric_limits<int>::min(),
    std::numeric_limits<int>::max()};
constexpr Range kSignals{1, 64};

int int_of(
    const nlohmann::json& message,
    const char* name,
    int otherwise,
    Range range = kAnyInt);
std::string text_of(const nlohmann::json& message, const char* name);

nlohmann::json to_message(const HostResult& end);
HostResult read_end(const nlohmann::json& message);
/// A host's place among the others, without ports and addresses; nothing if
/// its ranks would not fit in.
std::optional<RankAssignment> read_rank_assignment(
    const nlohmann::json& message,
    int worker_count);

nlohmann::json to_message(const RunResult& run_result);
RunResult read_result(const nlohmann::json& message);

/// What must be the same on all hosts, as a digest.
std::string command_digest(const Options& options);

} // namespace weft::launcher
