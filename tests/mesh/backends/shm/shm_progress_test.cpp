#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/communicator/caller.h"
#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/mesh/backends/shm/shm_values.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::HasSubstr;

/// Many slots.
int64_t large() {
  return 20 * test::slot_elements(at::kFloat) + 3;
}

Communicator make(RankContext& self, const char* name) {
  std::vector<int64_t> ranks(static_cast<size_t>(self.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return self.world.make_group(name, ranks);
}

/// Whether every element is the sum of 1, 2, ... n.
bool is_sum_of_ranks(const at::Tensor& tensor, int64_t n) {
  return at::equal(tensor, at::full_like(tensor, n * (n + 1) / 2));
}

// The one that waited for one group alone would wait for ever.
TEST(ShmProgress, GroupsMayBeWaitedForInOppositeOrders) {
  run_ranks(3, [](RankContext& self) {
    Communicator first = make(self, "first");
    Communicator second = make(self, "second");
    for (const int64_t count : {int64_t{5}, large()}) {
      std::vector<at::Tensor> tensors{
          at::full({count}, self.rank + 1.0),
          at::full({count}, self.rank + 1.0)};
      std::vector<Work> works(2);
      // Started in opposite orders, too.
      const size_t one = self.rank % 2;
      for (const size_t i : {one, 1 - one}) {
        works[i] = (i == 0 ? first : second).all_reduce(tensors[i]);
      }
      works[one].wait();
      works[1 - one].wait();
      EXPECT_TRUE(is_sum_of_ranks(tensors[0], 3));
      EXPECT_TRUE(is_sum_of_ranks(tensors[1], 3));
    }
  });
}

TEST(ShmProgress, ALargeMessageMovesWhileAnotherGroupIsWaitedFor) {
  run_ranks(3, [](RankContext& self) {
    std::optional<Communicator> low;
    std::optional<Communicator> high;
    if (self.rank < 2) {
      low.emplace(self.world.make_group("low", {0, 1}));
    }
    if (self.rank > 0) {
      high.emplace(self.world.make_group("high", {1, 2}));
    }
    auto big = at::full({large()}, self.rank + 1.0);
    Work work = low ? low->all_reduce(big) : Work();
    for (int i = 0; high && i < 100; ++i) {
      auto small = at::full({3}, static_cast<double>(self.rank));
      high->all_reduce(small).wait();
      EXPECT_EQ(small[0].item<float>(), 3);
    }
    work.wait();
    EXPECT_TRUE(!low || is_sum_of_ranks(big, 2));
  });
}

/// A stream of calls of one group, the same on all ranks.
class Stream {
 public:
  Stream(Communicator group, unsigned seed)
      : group_(std::move(group)), random_(seed) {}

  void start() {
    constexpr std::array<int64_t, 5> kCounts{1, 7, 4096, 200'000, 600'000};
    const int64_t count = kCounts[random_() % kCounts.size()];
    const int64_t n = group_.size();
    const auto own = static_cast<double>(group_.rank() + 1);
    switch (random_() % 5) {
      case 0:
        add(at::full({count}, own), at::full({count}, n * (n + 1) / 2.0));
        works_.push_back(group_.all_reduce(results_.back()));
        break;
      case 1:
        add(at::zeros({n, count}),
            at::arange(1.0, n + 1.0).unsqueeze(1).expand({n, count}));
        works_.push_back(
            group_.all_gather(results_.back(), at::full({count}, own)));
        break;
      case 2:
        add(at::zeros({count}), at::full({count}, n * (n + 1) / 2.0));
        works_.push_back(
            group_.reduce_scatter(results_.back(), at::full({n * count}, own)));
        break;
      case 3:
        start_all_to_all(count / 2 + 1);
        break;
      default: {
        const auto root = static_cast<int64_t>(random_()) % n;
        add(at::full({count}, own), at::full({count}, root + 1.0));
        works_.push_back(group_.broadcast(results_.back(), root));
      }
    }
  }
  size_t size() const { return works_.size(); }
  void wait(size_t i) {
    works_[i].wait();
    if (!dropped_.contains(i)) {
      check(i);
    }
  }
  void check(size_t i) const {
    EXPECT_TRUE(at::equal(results_[i], expected_[i])) << group_.name() << i;
  }
  /// Lets go of one that may be under way.
  void drop(size_t i) {
    works_[i] = Work();
    dropped_.insert(i);
  }
  bool poll(size_t i) const { return works_[i].is_completed(); }

 private:
  /// Parts of none to two times `count`, as many to a rank as from it.
  void start_all_to_all(int64_t count) {
    std::vector<int64_t> sizes;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> expected;
    for (int64_t peer = 0; peer < group_.size(); ++peer) {
      sizes.push_back((group_.rank() + peer) % 3 * count);
      inputs.push_back(at::full({sizes.back()}, group_.rank() + 1.0));
      expected.push_back(at::full({sizes.back()}, peer + 1.0));
    }
    const auto all = at::cat(expected);
    add(at::zeros_like(all), all);
    works_.push_back(
        group_.all_to_all(results_.back().split_with_sizes(sizes), inputs));
  }
  void add(at::Tensor start, at::Tensor expected) {
    results_.push_back(std::move(start));
    expected_.push_back(std::move(expected));
  }

  Communicator group_;
  std::mt19937 random_;
  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> expected_;
  std::vector<Work> works_;
  std::set<size_t> dropped_;
};

/// Starts a call of each stream `count` times in an order of this rank, and
/// polls and drops some of what is under way.
void start_in_any_order(
    std::vector<Stream>& streams,
    size_t count,
    std::mt19937& random) {
  std::vector<size_t> order;
  for (size_t i = 0; i < streams.size() * count; ++i) {
    order.push_back(i % streams.size());
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    streams[i].start();
    const size_t some = random() % streams[i].size();
    if (random() % 4 == 0) {
      streams[i].poll(some);
    } else if (random() % 8 == 0) {
      streams[i].drop(some);
    }
  }
}

/// Waits for all that has been started, in an order of this rank.
void wait_in_any_order(std::vector<Stream>& streams, std::mt19937& random) {
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t i = 0; i < streams.size(); ++i) {
    for (size_t call = 0; call < streams[i].size(); ++call) {
      order.emplace_back(i, call);
    }
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const auto& [i, call] : order) {
    streams[i].wait(call);
  }
}

class ShmStreams : public ::testing::TestWithParam<int> {};

TEST_P(ShmStreams, GroupsAreIndependent) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    run_ranks(GetParam(), [&](RankContext& self) {
      std::vector<Stream> streams;
      for (unsigned i = 0; i < 3; ++i) {
        const std::string name = "stream" + std::to_string(i);
        streams.emplace_back(make(self, name.c_str()), seed * 10 + i);
      }
      std::mt19937 own(seed * 100 + static_cast<unsigned>(self.rank));
      for (int block = 0; block < 4; ++block) {
        start_in_any_order(streams, 8, own);
        wait_in_any_order(streams, own);
      }
      for (auto& stream : streams) {
        // Those dropped are over before this.
        stream.start();
        stream.wait(stream.size() - 1);
        for (size_t call = 0; call < stream.size(); ++call) {
          stream.check(call);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShmStreams,
    ::testing::Values(2, 3, 5),
    ::testing::PrintToStringParamName());

TEST(ShmProgress, TwoThreadsOfARankMayWaitAtOnce) {
  run_ranks(2, [](RankContext& self) {
    Communicator first = make(self, "first");
    Communicator second = make(self, "second");
    const auto stream = [&](Communicator& group) {
      for (int i = 0; i < 200; ++i) {
        auto tensor = at::full({i % 10 == 0 ? 200'000 : 9}, self.rank + 1.0);
        group.all_reduce(tensor).wait();
        ASSERT_TRUE(is_sum_of_ranks(tensor, 2));
      }
    };
    std::thread other([&] { stream(second); });
    stream(first);
    other.join();
  });
}

TEST(ShmProgress, PollingIsEnoughToFinish) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    auto tensor = at::full({large()}, self.rank + 1.0);
    Work work = group.all_reduce(tensor);
    while (!work.is_completed()) {
    }
    EXPECT_TRUE(is_sum_of_ranks(tensor, 2));
    work.wait();
  });
}

// What this rank started, the others can finish while it does other things.
TEST(ShmProgress, ProgressThreadCompletesUnwaitedWork) {
  std::latch finished(2);
  run_ranks(3, [&](RankContext& self) {
    Communicator group = self.world.group();
    auto tensor = at::full({large()}, self.rank + 1.0);
    Work work = group.all_reduce(tensor);
    if (self.rank == 0) {
      finished.wait();
    } else {
      work.wait();
      finished.count_down();
    }
    work.wait();
    EXPECT_TRUE(is_sum_of_ranks(tensor, 3));
  });
}

// One thread waits long for a group that lives, the other for one whose peer
// goes.
TEST(ShmProgress, ALossIsNoticedWhileAnotherGroupIsWaitedFor) {
  std::latch lost(1);
  run_ranks(2, [&](RankContext& self) {
    Communicator alive = make(self, "alive");
    std::optional<Communicator> dying(make(self, "dying"));
    if (self.rank == 1) {
      dying->abort();
      lost.wait();
      alive.barrier();
      return;
    }
    std::thread waits([&, own = Caller::current()] {
      const CallerScope call_for(own); // as on the other rank
      EXPECT_NO_THROW(alive.barrier());
    });
    while (alive.flight_recorder().waiting_since_ns() == 0) {
      std::this_thread::yield();
    }
    EXPECT_THAT(
        message_of_thrown<CommError>([&] { dying->barrier(); }),
        HasSubstr("A peer is gone: connection closed by rank 1"));
    lost.count_down();
    waits.join();
  });
}

TEST(ShmProgress, APolledWorkEndsWhenAPeerGoes) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::latch connected(2);
  std::thread other([&] {
    const World world = World::from_store(store, 1, 2);
    world.group();
    connected.arrive_and_wait();
  });
  const World world = World::from_store(store, 0, 2);
  Communicator group = world.group();
  connected.arrive_and_wait();
  Work work = group.all_reduce(at::ones({3}));
  const auto late = std::chrono::steady_clock::now() + seconds(10);
  while (!work.is_completed() && std::chrono::steady_clock::now() < late) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(work.is_completed());
  EXPECT_THAT(
      message_of_thrown<DisagreementError>([&] { work.wait(); }),
      HasSubstr("Rank 1 has ended, but rank 0 waits for it in all_reduce #0"));
  other.join();
}

TEST(ShmProgress, AGroupMadeAfterAnAbortedOneWorks) {
  run_ranks(3, [](RankContext& self) {
    for (const char* name : {"one", "two", "three"}) {
      Communicator group = make(self, name);
      auto tensor = at::full({large()}, self.rank + 1.0);
      group.all_reduce(tensor).wait();
      EXPECT_TRUE(is_sum_of_ranks(tensor, 3));
      Work work = self.rank == 0 ? group.all_reduce(tensor) : Work();
      group.abort();
      EXPECT_THROW(group.barrier(), CommError);
      if (self.rank == 0) {
        EXPECT_THROW(work.wait(), CommError);
      }
    }
  });
}

int64_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return std::distance(begin(entries), end(entries));
}

bool has_mapping() {
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return text.find("memfd:weft") != std::string::npos;
}

TEST(ShmProgress, NothingIsLeftOfGroupsThatEnded) {
  const auto before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    run_ranks(3, [](RankContext& self) {
      for (const char* name : {"one", "two", "three"}) {
        Communicator group = make(self, name);
        group.barrier();
        EXPECT_TRUE(has_mapping());
        // Nobody waits for the last.
        group.all_reduce(at::ones({large()}));
        if (name[1] == 'w') {
          group.abort();
        }
      }
    });
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_FALSE(has_mapping());
}

} // namespace
} // namespace weft::mesh
