#include "tests/checkpoint/crash/crash_checker.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace weft::test {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  const CrashPoint& point;
  const Json& ranks;
  std::set<int64_t> steps;
  std::vector<std::string> names;
  Json& problems;

  void require(bool holds, const std::string& problem) const {
    if (!holds) {
      problems.push_back(problem);
    }
  }
  bool has(int64_t step) const { return steps.contains(step); }
};

std::string told(const Json& rank, const char* what) {
  return rank.value("save", "") == "" ? "" : rank.value(what, "");
}

// Whatever died: what was committed is there, but for what retention takes.
void judge_kill(const Case& seen) {
  seen.require(seen.has(2), "step 2 is lost");
  seen.require(
      seen.has(1) || seen.has(kCrashStep),
      "step 1 is deleted, and step 3 is not there");
  for (int rank = 0; rank < kCrashRanks; ++rank) {
    const auto save = told(seen.ranks[rank], "save");
    const bool agrees = save == "saved"     ? seen.has(kCrashStep)
                        : save == "refused" ? !seen.has(kCrashStep)
                                            : true;
    seen.require(
        agrees, fmt::format("rank {} says {}, and is wrong", rank, save));
  }
}

// "ENOSPC" of "error=ENOSPC:when=3" as people read it.
std::string reason_of(const std::string& fault) {
  for (const auto& [name, number] :
       {std::pair{"ENOSPC", ENOSPC},
        {"EIO", EIO},
        {"EROFS", EROFS},
        {"EACCES", EACCES},
        {"EDQUOT", EDQUOT}}) {
    if (fault.starts_with(fmt::format("error={}:", name))) {
      return std::strerror(number);
    }
  }
  return "";
}

void judge_error_text(const Case& seen, const std::string& error) {
  const auto names = [&](const std::string& part) {
    seen.require(
        error.find(part) != std::string::npos,
        fmt::format("the error does not name {}: {}", part, error));
  };
  names(seen.point.run.checkpoints.string());
  if (!seen.point.call.empty()) {
    names(fmt::format("rank {} ", seen.point.rank));
    names(reason_of(seen.point.fault));
  }
}

void judge_refused(const Case& seen) {
  judge_error_text(seen, told(seen.ranks[0], "error"));
  seen.require(seen.has(2), "step 2 is lost");
  seen.require(!seen.has(kCrashStep), "step 3 was not saved, but is there");
  for (const auto& name : seen.names) {
    seen.require(!name.starts_with(".tmp-"), "left behind: " + name);
  }
}

void judge_saved(const Case& seen) {
  seen.require(seen.has(kCrashStep), "step 3 was saved, but is not there");
  for (const auto& name : seen.names) {
    // What could not be deleted goes at the next start.
    seen.require(
        !name.starts_with(".tmp-") || name.starts_with(".tmp-deleted-"),
        "left behind: " + name);
  }
}

// All live: they say the same, and the next save works.
std::string judge_lived(const Case& seen) {
  const auto outcome = told(seen.ranks[0], "save");
  for (int rank = 0; rank < kCrashRanks; ++rank) {
    const auto& said = seen.ranks[rank];
    seen.require(
        told(said, "save") == outcome &&
            said.value("error", "") == seen.ranks[0].value("error", ""),
        fmt::format(
            "rank {} says {} ({}), rank 0 {}",
            rank,
            told(said, "save"),
            said.value("error", ""),
            outcome));
    const auto next = said.value("next", Json::object());
    seen.require(
        next.value("save", "") == "saved",
        fmt::format("rank {} cannot save step 4: {}", rank, next.dump()));
  }
  seen.require(seen.has(kCrashStep + 1), "step 4 was saved, but is not there");
  if (outcome == "refused") {
    judge_refused(seen);
  } else {
    seen.require(outcome == "saved", "the ranks cannot go on");
    judge_saved(seen);
  }
  return outcome;
}

} // namespace

std::string judge(const CrashPoint& point, Json& result) {
  Json problems = result["found"]["problems"];
  Case seen{
      point,
      result["ranks"],
      result["found"].value("steps", std::set<int64_t>{}),
      result["found"].value("names", std::vector<std::string>{}),
      problems};
  bool killed = false;
  for (int rank = 0; rank < kCrashRanks; ++rank) {
    seen.require(
        !seen.ranks[rank].value("hung", false),
        fmt::format("rank {} waits on", rank));
    killed = killed || seen.ranks[rank].value("signal", 0) != 0;
  }
  const bool kills = point.fault.starts_with("signal=KILL");
  seen.require(kills == killed, kills ? "nobody was killed" : "a rank died");
  std::string outcome = "killed";
  if (killed) {
    judge_kill(seen);
  } else {
    outcome = judge_lived(seen);
  }
  result["problems"] = problems;
  return outcome;
}

} // namespace weft::test
