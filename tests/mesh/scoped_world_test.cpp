#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>

#include <barrier>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/for_each_processor.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kTimeout{30};
/// How long a rank waits for a peer that was aborted while they connect.
constexpr std::chrono::seconds kAbortTimeout{1};
#if defined(WEFT_IS_SANITIZED)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

c10::intrusive_ptr<c10d::Store> part_of(
    const c10::intrusive_ptr<c10d::HashStore>& store,
    int number) {
  return c10::make_intrusive<c10d::PrefixStore>(
      "epoch/" + std::to_string(number), store);
}

void expect_sum(const World& world) {
  auto tensor = torch::full({1000}, static_cast<double>(world.rank() + 1));
  world.group().all_reduce(tensor).wait();
  const auto n = world.world_size();
  EXPECT_TRUE(at::equal(
      tensor, torch::full({1000}, static_cast<double>(n * (n + 1) / 2))));
}

int64_t entries_of(const char* folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder), closedir);
  int64_t count = 0;
  while (readdir(open.get()) != nullptr) {
    ++count;
  }
  return count;
}

int64_t lines_of(const char* path) {
  std::ifstream file(path);
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    ++count;
  }
  return count;
}

/// What the program has allocated and not freed. The C library's mallinfo2()
/// knows nothing of tcmalloc, and beside it must not be called by several
/// threads: the first call sets an allocator up that is not in use.
int64_t allocated_bytes() {
  using Property = int (*)(const char*, size_t*);
  const auto property = reinterpret_cast<Property>(
      dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty"));
  size_t bytes = 0;
  if (property != nullptr) {
    EXPECT_NE(property("generic.current_allocated_bytes", &bytes), 0);
  } else {
    bytes = mallinfo2().uordblks;
  }
  return static_cast<int64_t>(bytes);
}

/// What this process holds of the system's.
struct Holdings {
  int64_t descriptors = entries_of("/proc/self/fd");
  int64_t threads = entries_of("/proc/self/task");
  int64_t maps = lines_of("/proc/self/maps");
  int64_t bytes = allocated_bytes();
};

/// What this process holds once the threads that were left behind have ended.
Holdings settled_holdings() {
  constexpr int kQuiet = 40; // Looks, 10 ms apart.
  Holdings now;
  for (int quiet = 0; quiet < kQuiet; ++quiet) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const Holdings next;
    if (next.threads != now.threads || next.descriptors != now.descriptors) {
      quiet = 0;
    }
    now = next;
  }
  return now;
}

/// A world that is used to its end.
void use_world(const World& world) {
  expect_sum(world);
}

/// A world whose last rank never comes.
void cancel_connecting(const World& world) {
  if (world.rank() + 1 == world.world_size()) {
    return;
  }
  std::thread other([&] { world.abort(); });
  EXPECT_THROW(world.group(), CommError);
  other.join();
}

/// A world that one rank leaves while a collective runs, or, for the others,
/// perhaps while their group still connects.
void abort_running(const World& world) {
  auto tensor = torch::ones({300'000});
  const auto run = [&] {
    auto group = world.group();
    if (world.rank() == 0) {
      world.abort();
    }
    group.all_reduce(tensor).wait();
  };
  EXPECT_THROW(run(), CommError);
}

void erase_keys(c10d::HashStore& store) {
  for (const auto& key : store.listKeys()) {
    store.deleteKey(key);
  }
}

/// Makes worlds that end in every way, and compares what the process holds
/// before and after. The first 100 give allocators and pools their size. Both
/// looks follow a world that is used to its end (worlds 99 and 99 + `worlds`,
/// which is a multiple of 3), so that each rank then has its sockets.
void expect_nothing_left(int worlds, const std::string& backend) {
  constexpr int kRanks = 3;
  constexpr int kFirst = 100;
  const std::vector<void (*)(const World&)> ways{
      use_world, cancel_connecting, abort_running};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier all(kRanks);
  run_ranks(
      kRanks,
      [&](RankContext& self) {
        std::optional<Holdings> before;
        for (int i = 0; i < kFirst + worlds; ++i) {
          const auto way = ways[static_cast<size_t>(i) % ways.size()];
          way(self.world.scoped(
              part_of(store, i),
              self.rank,
              self.world_size,
              way == abort_running ? kAbortTimeout : kTimeout));
          all.arrive_and_wait();
          if (self.rank == 0) {
            erase_keys(*store);
            if (i + 1 == kFirst) {
              before = settled_holdings();
            }
          }
          all.arrive_and_wait();
        }
        if (self.rank != 0) {
          return;
        }
        const auto after = settled_holdings();
        EXPECT_EQ(after.descriptors, before->descriptors);
        EXPECT_EQ(after.threads, before->threads);
        if (!kIsSanitized) { // Sanitizers keep memory of their own.
          EXPECT_LE(after.maps, before->maps + 16);
          EXPECT_LE(after.bytes, before->bytes + 64 * 1024);
        }
      },
      kTimeout,
      backend);
}

TEST(ScopedWorld, AThousandOfThemLeaveNothingBehind) {
  expect_nothing_left(1002, "cpu");
}

TEST(ScopedWorld, FiftyOfThemOverGlooLeaveNothingBehind) {
  expect_nothing_left(51, "gloo");
}

TEST(ScopedWorld, EndsAloneByAnAbort) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](RankContext& self) {
    const auto aborted =
        self.world.scoped(part_of(store, 0), self.rank, 2, kTimeout);
    const auto other =
        self.world.scoped(part_of(store, 1), self.rank, 2, kTimeout);
    auto in_aborted = torch::ones({4});
    auto in_other = torch::ones({4});
    auto in_parent = torch::ones({4});
    auto group = aborted.group();
    auto other_group = other.group();
    auto parent_group = self.world.group();
    if (self.rank == 0) {
      auto first = group.all_reduce(in_aborted);
      auto second = other_group.all_reduce(in_other);
      auto third = parent_group.all_reduce(in_parent);
      aborted.abort();
      EXPECT_THAT(
          message_of_thrown<CommError>([&] { first.wait(); }),
          HasSubstr("The group was aborted on this rank"));
      second.wait();
      third.wait();
      EXPECT_THROW(aborted.make_group("late", {0, 1}), CommError);
      EXPECT_THROW(aborted.check_agreement("field", "value"), CommError);
    } else {
      other_group.all_reduce(in_other).wait();
      parent_group.all_reduce(in_parent).wait();
    }
    EXPECT_TRUE(at::equal(in_other, torch::full({4}, 2.0)));
    EXPECT_TRUE(at::equal(in_parent, torch::full({4}, 2.0)));
    expect_sum(other);
  });
}

TEST(ScopedWorld, AnAbortEndsAWaitAtTheSocketOfTheGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  // Rank 1 has said that it comes, and does not.
  part_of(store, 0)->set("weft/group/world/coming/1", "1");
  part_of(store, 0)->set("weft/shm_domain/0", "here");
  part_of(store, 0)->set("weft/shm_domain/1", "here");
  run_ranks(1, [&](RankContext& self) {
    const auto world = self.world.scoped(part_of(store, 0), 0, 2, kTimeout);
    std::thread other([&] {
      part_of(store, 0)->wait({"weft/group/world/socket"}, kTimeout);
      world.abort();
    });
    EXPECT_THAT(
        message_of_thrown<CommError>([&] { world.group(); }),
        HasSubstr("The world was aborted on this rank"));
    other.join();
  });
}

/// Every rank aborts its world before, in or after a collective, at a time of
/// its own, and then reuses the memory.
void expect_no_late_writes(const std::string& backend) {
  constexpr int kRanks = 3;
  constexpr int kRounds = 12;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier all(kRanks);
  run_ranks(
      kRanks,
      [&](RankContext& self) {
        for (int i = 0; i < kRounds; ++i) {
          const auto world =
              self.world.scoped(part_of(store, i), self.rank, kRanks, kTimeout);
          auto group = world.group();
          std::vector<at::Tensor> parts(kRanks);
          for (auto& part : parts) {
            part = torch::zeros({1'000'000});
          }
          const auto own = torch::ones({1'000'000});
          all.arrive_and_wait();
          std::thread other([&] {
            std::this_thread::sleep_for(
                std::chrono::microseconds(300 * i + 200 * self.rank));
            world.abort();
          });
          try {
            group.all_gather_uneven(parts, own).wait();
            group.all_reduce(parts[0]).wait();
          } catch (const CommError&) {
            for (auto& part : parts) {
              part.fill_(7);
            }
            own.fill_(7);
          }
          other.join();
          all.arrive_and_wait();
          for (const auto& part : parts) {
            if (own[0].item<float>() == 7) {
              EXPECT_TRUE(at::equal(part, own));
            }
          }
          all.arrive_and_wait();
        }
      },
      kTimeout,
      backend);
}

TEST(ScopedWorld, NothingIsWrittenAfterAFailedWait) {
  expect_no_late_writes("cpu");
}

TEST(ScopedWorld, NothingIsWrittenAfterAFailedWaitOverGloo) {
  expect_no_late_writes("gloo");
}

TEST(ScopedWorld, RefusesAWrongRankAndNoStore) {
  run_ranks(1, [](RankContext& self) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    EXPECT_THROW(self.world.scoped(store, 2, 2, kTimeout), c10::ValueError);
    EXPECT_THROW(self.world.scoped(store, -1, 2, kTimeout), c10::ValueError);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { self.world.scoped({}, 0, 2, kTimeout); }),
        HasSubstr("The store is null"));
    // One rank needs no store.
    expect_sum(self.world.scoped({}, 0, 1, kTimeout));
  });
}

} // namespace
} // namespace weft::mesh
