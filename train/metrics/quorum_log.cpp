#include "train/metrics/quorum_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

double rounded(double value) {
  return std::round(value * 1e3) / 1e3;
}

bool is_newer(const elastic::Quorum& one, const elastic::Quorum& other) {
  return std::pair(one.lighthouse, one.epoch) >
         std::pair(other.lighthouse, other.epoch);
}

/// Sets the groups that joined and were lost since the previous line. Another
/// group may have written that line, and a group only knows the changes since
/// its own start.
void compare_with(const elastic::Quorum& before, elastic::Quorum& quorum) {
  if (before.lighthouse != quorum.lighthouse) {
    return;
  }
  const auto known = quorum.lost;
  const auto why = [&](uint64_t /*life*/, int64_t group) {
    const auto lost =
        std::ranges::find(known, group, &elastic::Quorum::Lost::group);
    return lost == known.end() ? "" : lost->why;
  };
  elastic::set_changes(before, why, quorum);
}

QuorumEntry entry_of(const json& line) {
  QuorumEntry entry;
  auto& quorum = entry.quorum;
  line.at("lighthouse").get_to(quorum.lighthouse);
  line.at("epoch").get_to(quorum.epoch);
  line.at("step").get_to(quorum.step);
  line.at("time").get_to(entry.time);
  line.at("groups").get_to(quorum.groups);
  line.at("lives").get_to(quorum.lives);
  if (quorum.lives.size() != quorum.groups.size()) {
    throw json::other_error::create(501, "groups and lives", nullptr);
  }
  line.at("joined").get_to(quorum.joined);
  for (const auto& lost : line.at("lost")) {
    quorum.lost.push_back(
        {.group = lost.at("group").get<int64_t>(),
         .why = lost.at("why").get<std::string>()});
  }
  line.at("reconfigure_ms").get_to(quorum.reconfigure_ms);
  line.at("steps_redone").get_to(quorum.steps_redone);
  quorum.state_bytes = line.value("state_bytes", int64_t{0});
  quorum.state_ms = line.value("state_ms", 0.0);
  return entry;
}

} // namespace

std::string quorum_line(const QuorumEntry& entry) {
  const auto& quorum = entry.quorum;
  auto lost = ordered_json::array();
  for (const auto& group : quorum.lost) {
    lost.push_back({{"group", group.group}, {"why", group.why}});
  }
  ordered_json line = {
      {"lighthouse", quorum.lighthouse},
      {"epoch", quorum.epoch},
      {"step", quorum.step},
      {"time", rounded(entry.time)},
      {"groups", quorum.groups},
      {"lives", quorum.lives},
      {"joined", quorum.joined},
      {"lost", lost},
      {"reconfigure_ms", rounded(quorum.reconfigure_ms)},
      {"steps_redone", quorum.steps_redone}};
  if (quorum.state_bytes > 0) {
    line["state_bytes"] = quorum.state_bytes;
    line["state_ms"] = rounded(quorum.state_ms);
  }
  return base::strict_json_text(line);
}

QuorumHistory QuorumHistory::read(const std::string& path) {
  QuorumHistory history;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const bool is_complete = !file.eof();
    const auto line = base::try_parse_json(text);
    try {
      history.entries.push_back(entry_of(line));
    } catch (const json::exception&) {
      history.unreadable += is_complete || !text.empty() ? 1 : 0;
    }
  }
  return history;
}

QuorumLog::QuorumLog(std::string path, bool is_new_run)
    : path_(std::move(path)) {
  if (is_new_run) {
    std::error_code none;
    std::filesystem::remove(path_, none);
  }
  const auto history = QuorumHistory::read(path_);
  if (!history.entries.empty()) {
    last_ = history.entries.back().quorum;
  }
}

std::string QuorumLog::write(const std::vector<QuorumEntry>& entries) {
  std::string messages;
  for (auto entry : entries) {
    if (!is_newer(entry.quorum, last_)) {
      continue;
    }
    compare_with(last_, entry.quorum);
    if (!file_) {
      try {
        file_ = std::make_unique<BufferedAppendFile>(path_);
      } catch (const mesh::UsageError& error) {
        return error.what_without_backtrace();
      }
    }
    last_ = entry.quorum;
    messages += file_->append(quorum_line(entry) + '\n');
  }
  return messages;
}

} // namespace weft::train
