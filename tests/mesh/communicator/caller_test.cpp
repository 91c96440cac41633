#include "mesh/communicator/caller.h"

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A thread that does what it is told, and is waited for.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    give({});
    thread_.join();
  }

  void run(std::function<void()> task) {
    std::packaged_task<void()> wrapped(std::move(task));
    auto done = wrapped.get_future();
    give(std::move(wrapped));
    done.get();
  }

 private:
  void give(std::packaged_task<void()> task) {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    has_task_ = true;
    changed_.notify_one();
  }
  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return has_task_; });
      has_task_ = false;
      auto task = std::move(task_);
      lock.unlock();
      if (!task.valid()) {
        return;
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_task_ = false;
  std::packaged_task<void()> task_;
  std::thread thread_;
};

void sum_ones(Communicator& group, const std::string& name) {
  auto sum = at::ones({4});
  group.all_reduce(sum, ReduceOp::kSum, name).wait();
  EXPECT_EQ(sum[3].item<float>(), static_cast<float>(group.size()));
}

std::vector<int64_t> callers_of(const Communicator& group) {
  std::vector<int64_t> callers;
  for (const auto& entry : group.flight_recorder().entries()) {
    callers.push_back(entry.caller);
  }
  return callers;
}

class OneCaller : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(const std::function<void(RankContext&)>& body) {
    run_ranks(2, body, std::chrono::minutes(5), GetParam());
  }
};

TEST_P(OneCaller, ThreadsOneAfterTheOtherAreFine) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    for (int i = 0; i < 3; ++i) {
      sum_ones(group, "own");
      std::thread([&] { sum_ones(group, "helper's"); }).join();
    }
    EXPECT_EQ(callers_of(group), (std::vector<int64_t>{0, 1, 0, 2, 0, 3}));
  });
}

// A worker that was there first: nobody else can be taken for it.
TEST_P(OneCaller, OneWorkerInTurnWithItsOwnerIsFine) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    Worker worker;
    for (int i = 0; i < 3; ++i) {
      sum_ones(group, "own");
      worker.run([&] { sum_ones(group, "worker's"); });
    }
    EXPECT_EQ(callers_of(group), (std::vector<int64_t>{0, 1, 0, 1, 0, 1}));
  });
}

// Which of them calls first is for chance to say.
TEST_P(OneCaller, TwoWorkersAreRefused) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    Worker one;
    Worker two;
    one.run([&] { sum_ones(group, "first"); });
    two.run([&] {
      EXPECT_THAT(
          message_of_thrown<DisagreementError>(
              [&] { sum_ones(group, "second"); }),
          AllOf(
              HasSubstr("call on group \"world\" in an order that differs "
                        "between ranks: thread "),
              HasSubstr("calls all_reduce #"),
              HasSubstr("\"second\""),
              HasSubstr("lived already when thread "),
              HasSubstr("made its first call, all_reduce #"),
              HasSubstr("\"first\""),
              HasSubstr("A group serves one caller")));
    });
    message_of_thrown<DisagreementError>([&] { sum_ones(group, "later"); });
  });
}

TEST_P(OneCaller, WorkersThatCallForTheirOwnerAreFine) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    const auto own = Caller::current();
    Worker one;
    Worker two;
    for (auto* worker : {&one, &two}) {
      worker->run([&] {
        const CallerScope call_for(own);
        sum_ones(group, "for the owner");
      });
    }
    sum_ones(group, "own");
    EXPECT_EQ(callers_of(group), (std::vector<int64_t>{0, 0, 0}));
  });
}

TEST_P(OneCaller, WorkersWithGroupsOfTheirOwnAreFine) {
  on_ranks([](RankContext& self) {
    auto first = self.world.make_group("first", {0, 1});
    auto second = self.world.make_group("second", {0, 1});
    Worker one;
    Worker two;
    one.run([&] { sum_ones(first, "a"); });
    two.run([&] { sum_ones(second, "b"); });
    one.run([&] { sum_ones(first, "c"); });
  });
}

// Equal calls, of another thread on each rank.
TEST_P(OneCaller, OtherThreadsOnOtherRanksAreAMismatch) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    const auto call = [&] {
      EXPECT_THAT(
          message_of_thrown<DisagreementError>([&] { sum_ones(group, "x"); }),
          AllOf(
              HasSubstr("Ranks called different collectives in group "
                        "\"world\": rank 1 calls all_reduce #0 (\"x\" [4] "
                        "Float, 16 bytes) in calling thread 1 of the group, "
                        "rank 0 calls all_reduce #0 (\"x\" [4] Float, 16 "
                        "bytes) in the thread that made the group"),
              HasSubstr("A group serves one caller")));
    };
    if (self.rank == 0) {
      call();
    } else {
      std::thread(call).join();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    OneCaller,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return info.param; });

// Of libtorch's engine, by their names: they run backward for another.
TEST(Callers, AutogradThreadsCallForTheLastCaller) {
  FlightRecorderEntry call;
  call.op = "barrier";
  Callers callers;
  Worker engine;
  Worker other;
  engine.run([&] {
    pthread_setname_np(pthread_self(), "pt_autograd_0");
    EXPECT_EQ(callers.enter(call).caller, 0);
  });
  EXPECT_EQ(callers.enter(call).caller, 0);
  std::thread([&] {
    EXPECT_EQ(callers.enter(call).caller, 1);
    engine.run([&] { EXPECT_EQ(callers.enter(call).caller, 1); });
  }).join();
}

} // namespace
} // namespace weft::mesh
