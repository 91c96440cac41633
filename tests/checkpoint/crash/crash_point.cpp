#include "tests/checkpoint/crash/crash_point.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/crash/crash_checker.h"
#include "tests/checkpoint/crash/fork_child.h"
#include "tests/checkpoint/crash/strace.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Children = std::vector<ForkChild>;

constexpr std::chrono::seconds kStartLimit(30);
// Whose peer is gone must learn of it by itself.
constexpr std::chrono::seconds kSaveLimit(15);
constexpr std::chrono::seconds kPeerLimit(10);

int unused_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ::ntohs(address.sin_port);
}

Children start_ranks(const CrashRun& run) {
  const int port = unused_port();
  Children ranks;
  for (int rank = 0; rank < kCrashRanks; ++rank) {
    ranks.emplace_back([&](const std::function<void()>& ready) {
      return run_crash_rank(run, rank, port, ready);
    });
  }
  for (auto& rank : ranks) {
    if (!rank.wait_ready(kStartLimit)) {
      throw std::runtime_error("the ranks do not start");
    }
  }
  return ranks;
}

// Returns when step 3 is saved or refused, or the fault has ended the world.
// Who hangs is found by wait_for_end().
void save_faulty(Children& ranks) {
  for (auto& rank : ranks) {
    rank.proceed();
  }
  const auto limit = Clock::now() + kSaveLimit;
  for (auto& rank : ranks) {
    rank.wait_ready(std::max(
        std::chrono::duration_cast<std::chrono::milliseconds>(
            limit - Clock::now()),
        std::chrono::milliseconds(0)));
  }
}

// Returns the ranks that had to be killed.
std::vector<int> wait_for_end(Children& ranks) {
  const auto limit = Clock::now() + kPeerLimit;
  std::vector<int> late;
  while (true) {
    bool all = true;
    for (auto& rank : ranks) {
      all = rank.ended().has_value() && all;
    }
    if (all) {
      return late;
    }
    if (Clock::now() > limit && late.empty()) {
      for (int rank = 0; rank < kCrashRanks; ++rank) {
        if (!ranks[rank].ended()) {
          late.push_back(rank);
          ranks[rank].kill();
        }
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Json told_by(Children& ranks, const std::vector<int>& late) {
  Json result = Json::array();
  for (int rank = 0; rank < kCrashRanks; ++rank) {
    const auto text = ranks[rank].report();
    Json told = text.empty() ? Json::object() : Json::parse(text);
    told["signal"] = ranks[rank].ended().value_or(0);
    told["hung"] = std::ranges::count(late, rank) > 0;
    result.push_back(told);
  }
  return result;
}

Json check(const CrashRun& run) {
  ForkChild child([&](const std::function<void()>& ready) {
    const auto text = check_after_crash(run);
    ready();
    return text;
  });
  if (!child.wait_ready(kStartLimit)) {
    return Json{{"problems", {"the next start hangs or dies"}}};
  }
  child.proceed();
  while (!child.ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Json::parse(child.report());
}

Json calls_in(const fs::path& log, const fs::path& checkpoints) {
  Json calls = Json::array();
  for (const auto& call : read_strace_log(log)) {
    if (call.text.find(checkpoints.string()) != std::string::npos) {
      calls.push_back(
          {{"call", call.name},
           {"when", call.when},
           {"creates", call.text.find("O_CREAT") != std::string::npos},
           {"text", call.text.substr(0, 200)}});
    }
  }
  return calls;
}

} // namespace

const char* const kFileCalls =
    "open,openat,openat2,creat,mkdir,mkdirat,write,writev,pwrite64,pwritev,"
    "pwritev2,fallocate,ftruncate,truncate,sync_file_range,fsync,fdatasync,"
    "close,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,"
    "flock,copy_file_range,sendfile,fchmod,fchmodat,utimensat";

std::string run_crash_point(const CrashPoint& point, const fs::path& scratch) {
  fs::create_directories(scratch);
  const auto log = scratch / "strace.log";
  const bool lists = point.call.empty() && point.rank >= 0;
  const auto start = Clock::now();
  Json result;
  {
    auto ranks = start_ranks(point.run);
    std::optional<Strace> strace;
    if (point.rank >= 0) {
      strace.emplace(
          ranks.at(static_cast<size_t>(point.rank)).pid(),
          lists ? kFileCalls : point.call,
          point.fault,
          log);
    }
    save_faulty(ranks);
    strace.reset(); // step 4 is saved without
    for (auto& rank : ranks) {
      rank.proceed();
    }
    const auto late = wait_for_end(ranks);
    result["ranks"] = told_by(ranks, late);
  }
  result["found"] = check(point.run);
  result["outcome"] = judge(point, result);
  if (lists) {
    result["calls"] = calls_in(log, point.run.checkpoints);
  }
  result["wall_s"] =
      std::chrono::duration<double>(Clock::now() - start).count();
  return result.dump();
}

} // namespace weft::test
