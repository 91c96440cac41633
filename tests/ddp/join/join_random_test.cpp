// Random schedules under Join: numbers of inputs, options, joinables, delays,
// early termination and failures. All end; all are right, or fail on every
// rank.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/ddp/join/join_counter.h"
#include "tests/ddp/join/join_reference.h"
#include "tests/ddp/join/join_training.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::Division;
using test::JoinCounter;
using test::JoinRun;
using test::RankContext;

constexpr int kSeedsOfATest = 50;
constexpr auto kTimeout = std::chrono::seconds(30); // of a collective
constexpr auto kLimit = std::chrono::seconds(100);

/// Ends the process if a schedule does not end: its threads cannot be ended.
class Watchdog {
 public:
  explicit Watchdog(std::string what)
      : what_(std::move(what)), thread_([this] { watch(); }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLimit, [this] { return is_done_; })) {
      std::fprintf(stderr, "does not end: %s\n", what_.c_str());
      std::abort();
    }
  }

  std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
  std::thread thread_;
};

/// What all ranks know of one run.
struct Schedule {
  uint64_t seed = 0;
  JoinRun run;
  int64_t counters = 0;
  bool throws_on_early_termination = false;
  /// Where, and at which input, a rank throws.
  std::optional<int64_t> failing_rank = {};
  std::string failing_place = {};
  int64_t failing_batch = 0;

  std::string describe() const;
  int64_t iterations(int64_t replica) const;
  bool is_even() const;
};

std::string Schedule::describe() const {
  auto text = "seed " + std::to_string(seed) + ", " + run.describe() + ", " +
              std::to_string(counters) + " counters";
  if (throws_on_early_termination) {
    text += ", throw_on_early_termination";
  }
  if (failing_rank) {
    text += ", rank " + std::to_string(*failing_rank) + " fails at " +
            failing_place + " " + std::to_string(failing_batch);
  }
  return text;
}

/// That it begins.
int64_t Schedule::iterations(int64_t replica) const {
  const auto micro = run.setup().micro;
  return (run.counts.at(replica) + micro - 1) / micro;
}

bool Schedule::is_even() const {
  for (int64_t replica = 1; replica < run.dp(); ++replica) {
    if (iterations(replica) != iterations(0)) {
      return false;
    }
  }
  return true;
}

/// Returns numbers that do not depend on the standard library.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

/// A case that the layout has.
std::string choose_case(Dice& dice, int64_t dp, int64_t tp) {
  const auto runs = test::join_runs(dp == 4 && tp == 1 ? 4 : 2, tp);
  return dice.one_in(4)
             ? "plain"
             : runs.at(dice.below(static_cast<int64_t>(runs.size()))).name;
}

Schedule make_schedule(uint64_t seed) {
  Dice dice(seed);
  Schedule schedule;
  schedule.seed = seed;
  auto& run = schedule.run;
  run.tp = dice.one_in(3) ? 2 : 1;
  const auto dp = 1 + dice.below(run.tp == 2 ? 3 : 4);
  run.name = choose_case(dice, dp, run.tp);
  const auto setup = run.setup();
  for (int64_t replica = 0; replica < dp; ++replica) {
    const auto count = dice.below(8);
    run.counts.push_back(setup.joint ? count / 2 * 2 : count);
  }
  if (dice.one_in(6)) {
    run.counts.assign(run.counts.size(), run.counts[0]);
  }
  if (setup.options.reduce_op == mesh::ReduceOp::kAvg) {
    run.division = static_cast<Division>(dice.below(3));
  }
  schedule.counters = dice.below(3);
  schedule.throws_on_early_termination = dice.one_in(8);
  if (dice.one_in(6)) {
    const auto rank = dice.below(dp * run.tp);
    const auto count = run.counts[rank / run.tp];
    if (count > 0) {
      const std::vector<std::string> places = {
          "forward", "loss", "step", "hook"};
      schedule.failing_rank = rank;
      schedule.failing_place = places.at(dice.below(setup.hook ? 4 : 3));
      schedule.failing_batch = dice.below(count);
    }
  }
  return schedule;
}

/// What happens to one rank between its collectives.
class Disturbance {
 public:
  Disturbance(const Schedule& schedule, int64_t rank)
      : schedule_(schedule),
        rank_(rank),
        dice_(schedule.seed * 64 + static_cast<uint64_t>(rank)) {}

  void operator()(const std::string& place, int64_t batch) {
    if (dice_.one_in(4)) {
      std::this_thread::sleep_for(std::chrono::microseconds(dice_.below(2000)));
    }
    // "hook" has no number: the first reduction from that input on.
    latest_ = batch >= 0 ? batch : latest_;
    if (schedule_.failing_rank == rank_ && place == schedule_.failing_place &&
        latest_ >= schedule_.failing_batch) {
      has_failed = true;
      throw std::runtime_error("the rank failed");
    }
  }

  bool has_failed = false;

 private:
  const Schedule& schedule_;
  int64_t rank_;
  Dice dice_;
  int64_t latest_ = -1;
};

/// How a rank ended.
struct Outcome {
  test::OptionTrace trace;
  std::vector<int64_t> totals;
  bool has_failed = false;
  enum class Error { kNone, kOwn, kEarly, kOther } error = Error::kNone;
  std::string message;
};

void run_rank(const Schedule& schedule, RankContext& self, Outcome& outcome) {
  const auto& run = schedule.run;
  const auto mesh = self.mesh({run.dp(), run.tp}, {"dp", "tp"});
  std::vector<std::unique_ptr<JoinCounter>> counters;
  Disturbance disturbance(schedule, self.rank);
  test::JoinTraining training;
  training.options.throw_on_early_termination =
      schedule.throws_on_early_termination;
  for (int64_t i = 0; i < schedule.counters; ++i) {
    counters.push_back(
        std::make_unique<JoinCounter>(mesh.group("dp"), mesh["tp"]));
    training.joinables.push_back(counters.back().get());
  }
  if (run.setup().has_experts) {
    training.experts = test::join_pair_of(self);
  }
  training.at = [&](const std::string& place, int64_t batch) {
    disturbance(place, batch);
    for (const auto& counter : counters) {
      if (place == "step") {
        (*counter)();
      }
    }
  };
  try {
    outcome.trace = test::train_under_join(run, mesh, training);
  } catch (const data_parallel::EarlyTerminationError& error) {
    outcome.error = Outcome::Error::kEarly;
  } catch (const c10::Error& error) {
    outcome.error = Outcome::Error::kOther;
    outcome.message = error.what_without_backtrace();
  } catch (const std::runtime_error& error) {
    outcome.error = Outcome::Error::kOwn;
    outcome.message = error.what();
  }
  outcome.has_failed = disturbance.has_failed;
  for (const auto& counter : counters) {
    outcome.totals.push_back(counter->total);
  }
}

void expect_right(
    const Schedule& schedule,
    const std::vector<Outcome>& outcomes) {
  const auto& run = schedule.run;
  const auto setup = run.setup();
  const auto by_hand = test::train_join_by_hand(run);
  int64_t steps = 0;
  for (const auto count : run.counts) {
    steps += count / setup.micro;
  }
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto who = "rank " + std::to_string(rank);
    const auto& outcome = outcomes[rank];
    EXPECT_EQ(outcome.error, Outcome::Error::kNone)
        << who << ": " << outcome.message;
    if (outcome.error == Outcome::Error::kNone) {
      test::expect_traces_close(
          outcome.trace, by_hand.at(rank / run.tp), setup.tolerance, who);
      for (const auto total : outcome.totals) {
        EXPECT_EQ(total, steps) << who;
      }
    }
  }
}

void expect_failure(
    const Schedule& schedule,
    const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const bool is_own = schedule.failing_rank == static_cast<int64_t>(rank) &&
                        outcomes[rank].has_failed;
    EXPECT_EQ(
        outcomes[rank].error,
        is_own ? Outcome::Error::kOwn : Outcome::Error::kOther)
        << "rank " << rank << ": " << outcomes[rank].message;
  }
}

void check_schedule(const Schedule& schedule) {
  const auto& run = schedule.run;
  SCOPED_TRACE(schedule.describe());
  const Watchdog watchdog(schedule.describe());
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Outcome> outcomes(run.dp() * run.tp);
  test::run_ranks(
      static_cast<int>(run.dp() * run.tp),
      [&](RankContext& self) {
        run_rank(schedule, self, outcomes.at(self.rank));
      },
      kTimeout);
  // Errors come at once: a collective that nobody joins takes longer.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout / 2);
  bool has_failed = false;
  for (const auto& outcome : outcomes) {
    has_failed = has_failed || outcome.has_failed;
  }
  if (has_failed) {
    expect_failure(schedule, outcomes);
  } else if (schedule.throws_on_early_termination && !schedule.is_even()) {
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.error, Outcome::Error::kEarly) << outcome.message;
    }
  } else {
    expect_right(schedule, outcomes);
  }
}

class RandomSchedules : public ::testing::TestWithParam<int> {};

TEST_P(RandomSchedules, EndAndAreRight) {
  for (int i = 0; i < kSeedsOfATest; ++i) {
    check_schedule(
        make_schedule(static_cast<uint64_t>(GetParam() * kSeedsOfATest + i)));
  }
}

// 500 seeds.
INSTANTIATE_TEST_SUITE_P(Fifty, RandomSchedules, ::testing::Range(0, 10));

TEST(JoinRandomSchedules, HaveEverything) {
  int failing = 0;
  int early = 0;
  int cut = 0;
  int even = 0;
  std::set<std::string> names;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto schedule = make_schedule(seed);
    failing += schedule.failing_rank ? 1 : 0;
    early += schedule.throws_on_early_termination ? 1 : 0;
    even += schedule.is_even() ? 1 : 0;
    const auto micro = schedule.run.setup().micro;
    for (const auto count : schedule.run.counts) {
      cut += count % micro != 0 ? 1 : 0;
    }
    names.insert(schedule.run.name);
  }
  EXPECT_GE(failing, 40);
  EXPECT_GE(early, 40);
  EXPECT_GE(even, 40);
  EXPECT_GE(cut, 40);
  EXPECT_GE(names.size(), 60);
}

} // namespace
} // namespace weft::ddp
