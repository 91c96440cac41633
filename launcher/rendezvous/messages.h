#pragma once

#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/options/options.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// The interval at which timeouts are checked.
inline constexpr std::chrono::milliseconds kTick{20};
/// The time after which a wait for hosts is first reported, and the interval of
/// further reports.
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
/// Parses a host's assignment, without ports and addresses. Returns nullopt if
/// its ranks do not fit into the world.
std::optional<RankAssignment> read_rank_assignment(
    const nlohmann::json& message,
    int worker_count);

nlohmann::json to_message(const RunResult& run_result);
RunResult read_result(const nlohmann::json& message);

/// Returns a digest of the command, which must be identical on all hosts.
std::string command_digest(const Options& options);

} // namespace weft::launcher
