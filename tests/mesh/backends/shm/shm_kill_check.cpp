// shm_kill_check [ROUNDS] [SEED]: ranks that are processes go through a stream
// of collectives over shared memory until one of them is killed at a random
// moment. The others have to end soon, each with an error that reports it, and
// nothing may be left. Exit code 0 if that holds for all rounds.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/temp_folder.h"

namespace weft::mesh {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSoon{10};
constexpr int kLost = 3;
constexpr int kWrong = 4;

/// How many calls each rank has made, shared with the ranks.
class Progress {
 public:
  Progress()
      : calls_(static_cast<std::atomic<int64_t>*>(::mmap(
            nullptr,
            4096,
            PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_ANONYMOUS,
            -1,
            0))) {}
  std::atomic<int64_t>& of(int rank) const { return calls_[rank]; }

 private:
  std::atomic<int64_t>* calls_;
};

bool is_in_memory_of_its_own() {
  std::ifstream maps("/proc/self/maps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos) {
      return false;
    }
    found = found || line.find("/memfd:weft") != std::string::npos;
  }
  return found;
}

/// Calls collectives of all kinds and sizes until one throws.
void stream(const World& world, unsigned seed, std::atomic<int64_t>& calls) {
  Communicator all = world.group();
  const int64_t n = world.world_size();
  const int64_t low = world.rank() / 2 * 2;
  std::optional<Communicator> pair;
  if (low + 1 < n) {
    pair.emplace(
        world.make_group("pair/" + std::to_string(low / 2), {low, low + 1}));
  }
  if (!is_in_memory_of_its_own()) {
    throw std::runtime_error("no mapping of its own memory, or of /dev/shm");
  }
  std::mt19937 random(seed);
  std::vector<Work> under_way;
  while (true) {
    constexpr std::array<int64_t, 4> kCounts{1, 1000, 100'000, 700'000};
    const int64_t count = kCounts[random() % kCounts.size()];
    const bool of_pair = random() % 3 == 0;
    const auto root = static_cast<int64_t>(random() % 2);
    Communicator& group = of_pair && pair ? *pair : all;
    switch (of_pair && !pair ? 5 : random() % 5) {
      case 0:
        under_way.push_back(group.all_reduce(at::ones({count})));
        break;
      case 1:
        under_way.push_back(group.all_gather(
            at::empty({group.size() * count}), at::ones({count})));
        break;
      case 2:
        under_way.push_back(group.reduce_scatter(
            at::empty({count}), at::ones({group.size() * count})));
        break;
      case 3:
        under_way.push_back(group.broadcast(at::ones({count}), root));
        break;
      case 4:
        group.barrier();
        break;
      default: // The last of an odd number of ranks has no pair.
        random();
        break;
    }
    if (under_way.size() > random() % 4) {
      for (Work& work : under_way) {
        work.wait();
      }
      under_way.clear();
    }
    ++calls;
  }
}

int run_rank(
    const fs::path& store,
    int rank,
    int ranks,
    unsigned seed,
    std::atomic<int64_t>& calls) {
  at::set_num_threads(1);
  try {
    const World world = World::from_store(
        c10::make_intrusive<c10d::FileStore>(store.string(), ranks),
        rank,
        ranks);
    stream(world, seed, calls);
  } catch (const CommError& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("A peer is gone") != std::string::npos) {
      return kLost;
    }
    std::cerr << "rank " << rank << ": " << text << "\n";
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << ": " << error.what() << "\n";
  }
  return kWrong;
}

/// The exit code, or 128 + the signal; none if it runs on.
std::optional<int> end_of(pid_t process, Clock::time_point deadline) {
  while (true) {
    int status = 0;
    if (::waitpid(process, &status, WNOHANG) == process) {
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    if (Clock::now() > deadline) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// What sockets' names or files of shared memory look like ours.
std::set<std::string> left_behind() {
  std::set<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const auto at = line.find("@weft-");
    if (at != std::string::npos) {
      names.insert(line.substr(at));
    }
  }
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const auto name = entry.path().filename().string();
    if (name.find("weft") != std::string::npos) {
      names.insert(entry.path());
    }
  }
  return names;
}

/// Others' may come and go at the same time.
bool all_vanish(std::set<std::string> names) {
  for (int i = 0; i < 500 && !names.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto now = left_behind();
    std::erase_if(names, [&](const auto& name) { return !now.contains(name); });
  }
  for (const auto& name : names) {
    std::cerr << "left behind: " << name << "\n";
  }
  return names.empty();
}

class Check {
 public:
  explicit Check(unsigned seed) : random_(seed) {}

  bool run_round(int round) {
    const int ranks = 2 + round % 3;
    start(round, ranks);
    const auto ready = Clock::now() + std::chrono::seconds(60);
    for (int rank = 0; rank < ranks; ++rank) {
      while (progress_.of(rank) == 0 && Clock::now() < ready) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    const auto victim = static_cast<size_t>(random_()) % ranks_.size();
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 50'000));
    ::kill(ranks_[victim], SIGKILL);
    return check_ends(round, victim);
  }
  std::chrono::milliseconds longest() const { return longest_; }
  int64_t calls() const { return calls_; }

 private:
  void start(int round, int ranks) {
    const auto store = folder_ / std::to_string(round);
    const auto seed = static_cast<unsigned>(random_());
    ranks_.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      progress_.of(rank) = 0;
      const pid_t process = ::fork();
      if (process == 0) {
        ::_exit(run_rank(store, rank, ranks, seed, progress_.of(rank)));
      }
      ranks_.push_back(process);
    }
  }
  bool check_ends(int round, size_t victim) {
    const auto begin = Clock::now();
    bool good = true;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto code = end_of(ranks_[rank], begin + kSoon);
      const int expected = rank == victim ? 128 + SIGKILL : kLost;
      if (code != expected) {
        good = false;
        std::cerr << "round " << round << ": rank " << rank << " of "
                  << ranks_.size() << " "
                  << (code ? "ended with " + std::to_string(*code) : "runs on")
                  << " after rank " << victim << " was killed\n";
        if (!code) {
          ::kill(ranks_[rank], SIGKILL);
          ::waitpid(ranks_[rank], nullptr, 0);
        }
      }
      calls_ += progress_.of(static_cast<int>(rank));
    }
    longest_ = std::max(
        longest_,
        std::chrono::duration_cast<std::chrono::milliseconds>(
            Clock::now() - begin));
    return good;
  }

  std::mt19937 random_;
  test::TempFolder folder_;
  Progress progress_;
  std::vector<pid_t> ranks_;
  std::chrono::milliseconds longest_{0};
  int64_t calls_ = 0;
};

int run(int rounds, unsigned seed) {
  int failed = 0;
  Check check(seed);
  for (int round = 0; round < rounds; ++round) {
    failed += check.run_round(round) ? 0 : 1;
  }
  std::cout << rounds - failed << " of " << rounds
            << " kills ended well, the slowest after "
            << check.longest().count() << " ms; " << check.calls()
            << " calls (seed " << seed << ")\n";
  return failed == 0 && all_vanish(left_behind()) ? 0 : 1;
}

} // namespace
} // namespace weft::mesh

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const auto seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2]))
                             : std::random_device()();
  return weft::mesh::run(rounds, seed);
}
