#include <csignal>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"

namespace weft::elastic {
namespace {

using launcher::lines_of;
using launcher::WeftrunProcess;
using ::testing::HasSubstr;

/// A run of replica groups that each print what they apply.
std::vector<std::string> worker(
    int groups,
    int steps,
    int milliseconds,
    std::vector<std::string> flags = {},
    int ranks = 1) {
  flags.insert(
      flags.end(),
      {"--replica-size=" + std::to_string(ranks),
       "--nproc-per-node=" + std::to_string(groups * ranks),
       "--",
       WEFT_ELASTIC_EXAMPLE,
       std::to_string(steps),
       std::to_string(milliseconds)});
  return flags;
}

struct Applied {
  int64_t step = -1;
  pid_t pid = 0;
  int64_t groups = 0;
};

struct Output {
  std::vector<Applied> applied;
  /// The sum of the weights that each process has at its end.
  std::map<pid_t, double> weights;
};

Output read(const std::string& text) {
  Output result;
  for (const auto& line : lines_of(text)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "step") {
      Applied applied;
      words >> applied.step >> word >> applied.pid;
      words >> word >> word >> word >> word >> word >> applied.groups;
      result.applied.push_back(applied);
    } else if (word == "weights") {
      double sum = 0;
      pid_t pid = 0;
      words >> sum >> word >> pid;
      result.weights[pid] = sum;
    }
  }
  return result;
}

/// Kills the process that prints for a group of some ranks.
void kill_a_group(int ranks) {
  constexpr int kSteps = 900; // The next life comes in the first two seconds.
  WeftrunProcess alone(worker(1, kSteps, 0));
  ASSERT_EQ(alone.wait(), 0) << alone.error();
  const auto expected = read(alone.output()).weights.begin()->second;

  WeftrunProcess run(worker(3, kSteps, 8, {"--max-restarts=3"}, ranks));
  run.wait_for("step 20 ");
  const auto first = read(run.output()).applied;
  std::set<pid_t> pids;
  for (const auto& applied : first) {
    pids.insert(applied.pid);
  }
  ASSERT_EQ(pids.size(), 3);
  const pid_t victim = *pids.begin();
  kill(victim, SIGKILL);
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.error(), HasSubstr(": restart 1 of 3 in 1 s"));

  const auto output = read(run.output());
  // The survivors and the next life of the lost one end with the weights of
  // one undisturbed process.
  EXPECT_EQ(output.weights.size(), 3);
  EXPECT_FALSE(output.weights.contains(victim));
  for (const auto& [pid, weights] : output.weights) {
    EXPECT_NEAR(weights, expected, 1e-4 * expected) << pid;
  }
  // Each survivor applied each step once, in order, in the same process.
  std::map<pid_t, int64_t> next;
  std::set<int64_t> groups;
  for (const auto& applied : output.applied) {
    if (pids.contains(applied.pid)) {
      EXPECT_EQ(applied.step, next[applied.pid]++) << applied.pid;
    }
    groups.insert(applied.groups);
  }
  EXPECT_THAT(groups, ::testing::IsSupersetOf({2, 3}));
  pids.erase(victim);
  for (const pid_t pid : pids) {
    EXPECT_EQ(next[pid], kSteps);
  }
}

TEST(ElasticRun, GoesOnWhenAGroupIsKilledAndLetsItsNextLifeIn) {
  kill_a_group(1);
}

TEST(ElasticRun, GoesOnWhenARankOfAGroupOfTwoIsKilled) {
  kill_a_group(2);
}

TEST(ElasticRun, AStoppedGroupIsLeftOutAndGetsTheStateWhenItGoesOn) {
  constexpr int kSteps = 700;
  WeftrunProcess run(worker(3, kSteps, 8));
  run.wait_for("step 20 ");
  const pid_t stopped = read(run.output()).applied.front().pid;
  kill(stopped, SIGSTOP);
  run.wait_for("groups 2 ");
  run.wait_for("groups 2 ", 40);
  kill(stopped, SIGCONT);
  EXPECT_EQ(run.wait(), 0) << run.error();
  const auto output = read(run.output());
  EXPECT_EQ(output.weights.size(), 3);
  std::set<double> weights;
  for (const auto& [pid, sum] : output.weights) {
    weights.insert(sum);
  }
  EXPECT_EQ(weights.size(), 1);
  // What it had missed is not applied twice by it.
  int64_t last = -1;
  for (const auto& applied : output.applied) {
    if (applied.pid == stopped) {
      EXPECT_GT(applied.step, last);
      last = applied.step;
    }
  }
  EXPECT_EQ(last, kSteps - 1);
}

TEST(ElasticRun, HalfOfTheGroupsMayNotGoOnBeforeTheOtherHalfHasEnded) {
  constexpr int kSteps = 800;
  WeftrunProcess run(worker(2, kSteps, 8, {"--max-restarts=3"}));
  run.wait_for("step 20 ");
  const pid_t stopped = read(run.output()).applied.front().pid;
  kill(stopped, SIGSTOP);
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.error(), HasSubstr("is killed: it does not respond"));
  EXPECT_THAT(run.error(), HasSubstr("restart 1 of 3"));
  const auto output = read(run.output());
  EXPECT_EQ(output.weights.size(), 2);
  EXPECT_FALSE(output.weights.contains(stopped));
}

TEST(ElasticRun, AGroupThatIsLostAtTheEndIsNotNeeded) {
  constexpr int kSteps = 60;
  WeftrunProcess run(worker(3, kSteps, 8, {"--max-restarts=3"}));
  run.wait_for("step 50 ");
  kill(read(run.output()).applied.front().pid, SIGKILL);
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(read(run.output()).weights.size(), 2);
}

} // namespace
} // namespace weft::elastic
