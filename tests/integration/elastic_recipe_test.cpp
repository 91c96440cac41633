// Elastic runs of a recipe: replica groups that are killed and come back.

#include <csignal>
#include <optional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// More than are done before the run is asked to stop.
constexpr int kSteps = 100'000;
/// A group that was killed comes back after a second: without a delay the
/// others would do thousands of steps by then, which a reference has to do
/// again.
const Process::Variables kSlowly = {{"WEFT_DELAY_MS", "3"}};

struct Groups {
  int groups;
  int ranks;
  std::string batch = "fixed";
};
std::ostream& operator<<(std::ostream& out, const Groups& groups) {
  return out << groups.groups << "x" << groups.ranks << groups.batch;
}

class ElasticRecipeTest : public ProcessTest {
 protected:
  static Words overrides(const std::string& output, int steps) {
    return {
        "train.steps=" + std::to_string(steps),
        "train.global_batch_size=12",
        "model.kv_heads=12",
        "eval.every=0",
        "checkpoint.every=100",
        "optimizer.lr=1e-3", // Rounding grows slowly.
        "lr_schedule.type=constant",
        "output_dir=" + output};
  }
  static Words train(const Words& more) {
    return test::train(more, "tiny.yaml", WEFT_FAULTY);
  }
  static Words plain(const std::string& output, int steps) {
    return launched(1, train(overrides(output, steps)));
  }
  /// A run of as many ranks without groups, of which an exact one has the bits.
  static Words
  plain(const Groups& groups, const std::string& output, int steps) {
    auto words = overrides(output, steps);
    words.insert(
        words.end(),
        {"mesh.dp=" + std::to_string(groups.groups),
         "mesh.tp=" + std::to_string(groups.ranks)});
    return launched(groups.groups * groups.ranks, train(words));
  }
  static Words
  elastic(const Groups& groups, const std::string& output, int steps = kSteps) {
    auto words = overrides(output, steps);
    words.insert(words.end(), {"elastic.batch=" + groups.batch, "mesh.tp=-1"});
    words = launched(groups.groups * groups.ranks, train(words));
    words.insert(
        words.begin() + 1,
        {"--replica-size=" + std::to_string(groups.ranks), "--max-restarts=9"});
    return words;
  }

  /// Waits for some steps that so many groups do, and more steps after them.
  void wait_for_groups(Process& run, const std::string& output, int groups)
      const {
    constexpr size_t kMore = 10;
    const auto limit = std::chrono::steady_clock::now() + seconds(60);
    const auto before = metrics_so_far(output).size();
    while (true) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.error();
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << run.error();
      const auto lines = metrics_so_far(output);
      if (lines.size() > before + kMore &&
          lines.back().at("groups") == groups) {
        return;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  /// A worker of the run: the one that has the folder's lock, or another. 0 if
  /// there is none but `excluded`.
  static pid_t find_worker(
      pid_t run,
      const std::string& lock,
      bool writes,
      pid_t excluded = 0) {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::error_code error;
      if (fs::read_symlink(entry.path() / "exe", error).filename() !=
          "faulty_weft") {
        continue;
      }
      const auto status = test::read_text(entry.path() / "status");
      if (status.find("\nPPid:\t" + std::to_string(run) + "\n") ==
          std::string::npos) {
        continue;
      }
      bool has_lock = false;
      for (const auto& fd :
           fs::directory_iterator(entry.path() / "fd", error)) {
        const auto target = fs::read_symlink(fd.path(), error).string();
        has_lock = has_lock || target.find(lock) != std::string::npos;
      }
      const pid_t pid = std::stoi(entry.path().filename());
      if (has_lock == writes && pid != excluded) {
        return pid;
      }
    }
    return 0;
  }
  /// Waits for it: one that is lost has the lock until it has ended.
  static pid_t worker(pid_t run, const std::string& lock, bool writes) {
    pid_t result = 0;
    for (int i = 0; result == 0 && i < 500; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
      result = find_worker(run, lock, writes);
    }
    return result;
  }

  /// Waits for `text` in the run's stderr.
  static void expect_error(Process& run, const std::string& text) {
    for (int i = 0; i < 500 && run.error().find(text) == std::string::npos;
         ++i) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_THAT(run.error(), HasSubstr(text));
  }

  /// Whether the other groups wait for that worker: it sends heartbeats.
  static bool is_joining(pid_t worker) {
    const auto folder = fs::path("/proc") / std::to_string(worker) / "task";
    std::error_code error;
    for (const auto& thread : fs::directory_iterator(folder, error)) {
      if (test::read_text(thread.path() / "comm") == "weft_heartbeat\n") {
        return true;
      }
    }
    return false;
  }

  /// A plain run goes on after the last step.
  void expect_saved(const std::string& output, int steps) const {
    Process more(plain(output, steps + 1), folder_);
    ASSERT_EQ(more.wait(), 0) << more.error();
    EXPECT_THAT(
        more.output(),
        HasSubstr(
            "resumes from " + output + "/checkpoints/step-" +
            std::to_string(steps)));
  }

  // A run on another mesh differs by 2e-5, one with other samples by 1e-2.
  void expect_each_step_once(
      const std::string& output,
      const std::string& expected,
      double tolerance = 1e-4) const {
    const auto lines = metrics(output);
    const auto straight = metrics(expected);
    ASSERT_EQ(lines.size(), straight.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      ASSERT_EQ(lines[i].at("step"), i + 1);
      EXPECT_EQ(lines[i].at("tokens"), straight[i].at("tokens"));
      const double loss = straight[i].at("loss");
      EXPECT_NEAR(lines[i].at("loss"), loss, tolerance * loss) << i;
    }
  }
};

class KilledGroup : public ElasticRecipeTest,
                    public ::testing::WithParamInterface<Groups> {};

// First one that does not write the folder, then the one that does.
TEST_P(KilledGroup, LeavesNoTraceInTheNumbers) {
  const auto groups = GetParam();
  Process run(elastic(groups, "killed", kSteps), folder_, kSlowly);
  for (const bool writes : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "killed", groups.groups));
    const auto victim = worker(run.pid(), "killed/checkpoints", writes);
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "killed", groups.groups - 1));
  }
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  Process quorum({WEFT_WEFT, "quorum", "killed"}, folder_);
  ASSERT_EQ(quorum.wait(), 0) << quorum.error();
  EXPECT_THAT(quorum.output(), HasSubstr("lost (SIGKILL)"));
  EXPECT_THAT(quorum.output(), HasSubstr("groups lost: 2,"));
  const auto steps = static_cast<int>(metrics("killed").size());
  const bool is_exact = groups.batch == "exact";
  const auto straight = [&](const std::string& output, int end) {
    return is_exact ? plain(groups, output, end) : plain(output, end);
  };
  const double tolerance = is_exact ? 0 : 1e-4;
  expect_success(straight("straight", steps));
  expect_each_step_once("killed", "straight", tolerance);
  // Without groups it resumes from the last step.
  expect_success(straight("straight", steps + 5));
  Process more(straight("killed", steps + 5), folder_);
  ASSERT_EQ(more.wait(), 0) << more.error();
  EXPECT_THAT(
      more.output(),
      HasSubstr(
          "resumes from killed/checkpoints/step-" + std::to_string(steps)));
  expect_each_step_once("killed", "straight", tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    ,
    KilledGroup,
    ::testing::Values(
        Groups{3, 1},
        Groups{2, 2},
        Groups{3, 1, "exact"},
        Groups{2, 2, "exact"}),
    ::testing::PrintToStringParamName());

// Lanes of several micro-batches, which two groups compute as four ranks do.
TEST_F(ElasticRecipeTest, LanesHaveTheBitsOfAsManyRanks) {
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words batch = {
      "train.global_batch_size=24", "train.micro_batch_size=2"};
  expect_success(with(plain({4, 1}, "ranks", 8), batch));
  expect_success(with(
      elastic({2, 1, "exact"}, "lanes", 8), with(batch, {"elastic.lanes=4"})));
  expect_each_step_once("lanes", "ranks", 0);
  Process diff(
      {WEFT_WEFT,
       "checkpoint",
       "diff",
       "ranks/checkpoints/step-8",
       "lanes/checkpoints/step-8"},
      folder_);
  EXPECT_EQ(diff.wait(), 0) << diff.output();
  EXPECT_THAT(diff.output(), HasSubstr("bit for bit"));
}

// First one that does not write the folder, then the one that does.
TEST_F(ElasticRecipeTest, AGroupThatIsStoppedLeavesAndTheOthersLoseNoStep) {
  Process run(elastic({3, 1}, "left"), folder_, kSlowly);
  for (const bool writes : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "left", 3));
    const auto victim = worker(run.pid(), "left/checkpoints", writes);
    ASSERT_GT(victim, 0);
    kill(victim, SIGTERM);
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "left", 2));
  }
  ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "left", 3));
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  EXPECT_THAT(run.error(), HasSubstr("this replica group leaves after step"));
  Process quorum({WEFT_WEFT, "quorum", "left"}, folder_);
  ASSERT_EQ(quorum.wait(), 0) << quorum.error();
  EXPECT_THAT(quorum.output(), HasSubstr("lost (left)"));
  EXPECT_THAT(quorum.output(), HasSubstr("groups lost: 2,"));
  EXPECT_THAT(quorum.output(), HasSubstr("steps done again: 0"));
  const auto steps = static_cast<int>(metrics("left").size());
  expect_success(plain("straight", steps));
  expect_each_step_once("left", "straight");
}

// All groups are asked at once, and not weftrun: somebody has to save.
TEST_F(ElasticRecipeTest, GroupsThatAreAllStoppedSave) {
  auto words = elastic({2, 1}, "all");
  *std::ranges::find(words, "--max-restarts=9") = "--max-restarts=0";
  Process run(words, folder_, kSlowly);
  ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "all", 2));
  const auto one = worker(run.pid(), "all/checkpoints", false);
  const auto other = worker(run.pid(), "all/checkpoints", true);
  kill(one, SIGTERM);
  kill(other, SIGTERM);
  ASSERT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  const auto steps = static_cast<int>(metrics("all").size());
  expect_saved("all", steps);
}

TEST_F(ElasticRecipeTest, TheOthersSaveWhenAGroupEndsTheRun) {
  auto words = elastic({3, 1}, "given_up");
  *std::ranges::find(words, "--max-restarts=9") = "--max-restarts=0";
  Process run(words, folder_, kSlowly);
  ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "given_up", 3));
  kill(worker(run.pid(), "given_up/checkpoints", false), SIGKILL);
  ASSERT_EQ(run.wait(), 128 + SIGKILL) << run.error();
  expect_saved("given_up", static_cast<int>(metrics("given_up").size()));
}

TEST_F(ElasticRecipeTest, GoesOnFromACheckpointOfAPlainRun) {
  expect_success(plain("straight", 20));
  expect_success(plain("elastic", 10));
  Process run(elastic({2, 1}, "elastic", 20), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("step 10"));
  expect_each_step_once("elastic", "straight");
}

TEST_F(ElasticRecipeTest, AGroupWithAnotherRecipeIsRefusedAndTheOthersGoOn) {
  using Edit = std::pair<std::string, std::string>;
  for (const auto& [edited, key] :
       {Edit{"seed: 7", "seed"},
        Edit{"log: {tensorboard: true}", "log.tensorboard true"}}) {
    SCOPED_TRACE(edited);
    const std::string output = "refused_" + key.substr(0, 3);
    write("tiny.yaml", kRecipe);
    Process run(elastic({3, 1}, output, kSteps), folder_, kSlowly);
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, output, 3));
    write("tiny.yaml", std::string(kRecipe) + edited + "\n");
    kill(worker(run.pid(), output + "/checkpoints", false), SIGKILL);
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, output, 2));
    expect_error(run, "The other groups go on");
    EXPECT_THAT(run.error(), HasSubstr(key));
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, output, 2));
    run.send(SIGTERM);
    EXPECT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  }
}

TEST_F(ElasticRecipeTest, AGroupThatWaitsForOthersSavesWhenItIsStopped) {
  auto words = elastic({2, 1}, "waits");
  words.emplace_back("elastic.min_groups=2");
  Process run(words, folder_, kSlowly);
  ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "waits", 2));
  kill(worker(run.pid(), "waits/checkpoints", true), SIGKILL);
  std::this_thread::sleep_for(milliseconds(500));
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  const auto steps = static_cast<int>(metrics("waits").size());
  expect_success(plain("straight", steps + 1));
  expect_saved("waits", steps);
  expect_each_step_once("waits", "straight");
}

// One group is not there yet, and the other has trained nothing.
TEST_F(ElasticRecipeTest, AGroupWithoutAStateEndsAsPreemptedWhenItIsStopped) {
  auto words = elastic({2, 1}, "early");
  words.emplace_back("elastic.min_groups=2");
  std::optional<Process> started;
  pid_t late = 0;
  for (int i = 0; late == 0; ++i) {
    ASSERT_LT(i, 5) << "both groups had joined before one was stopped";
    started.emplace(words, folder_, kSlowly);
    late = worker(started->pid(), "early/checkpoints", false);
    ASSERT_GT(late, 0);
    kill(late, SIGSTOP);
    if (is_joining(late)) {
      kill(std::exchange(late, 0), SIGCONT);
      started->send(SIGTERM);
      started->wait();
    }
  }
  auto& run = *started;
  pid_t waiting = 0;
  for (int i = 0; waiting == 0 && i < 500; ++i) {
    std::this_thread::sleep_for(milliseconds(20));
    for (const bool writes : {true, false}) {
      const auto found =
          find_worker(run.pid(), "early/checkpoints", writes, late);
      waiting = is_joining(found) ? found : waiting;
    }
  }
  ASSERT_GT(waiting, 0) << run.error();
  kill(waiting, SIGTERM);
  expect_error(run, "exit code 143");
  expect_error(run, "too few replica groups are there");
  kill(late, SIGCONT);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM) << run.error();
}

TEST_F(ElasticRecipeTest, TooFewGroupsSaveAndBeginAgainWithOthers) {
  auto words = elastic({2, 1}, "few");
  words.insert(
      words.end(), {"elastic.min_groups=2", "elastic.join_timeout_s=1"});
  Process run(words, folder_, kSlowly);
  for (int i = 0; i < 2; ++i) { // The second time it comes back after a second.
    ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "few", 2));
    kill(worker(run.pid(), "few/checkpoints", false), SIGKILL);
  }
  ASSERT_NO_FATAL_FAILURE(wait_for_groups(run, "few", 2));
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(), 128 + SIGTERM) << run.error();
  EXPECT_THAT(
      run.error(),
      HasSubstr("replica groups: got 1, expected at least min_groups = 2"));
  const auto steps = static_cast<int>(metrics("few").size());
  expect_success(plain("straight", steps));
  expect_each_step_once("few", "straight");
}

TEST_F(ElasticRecipeTest, QuorumNeedsTheFolderOfAnElasticRun) {
  Process quorum({WEFT_WEFT, "quorum", "nowhere"}, folder_);
  EXPECT_EQ(quorum.wait(), 2);
  EXPECT_THAT(quorum.error(), HasSubstr("nowhere: has no quorum.jsonl"));
}

TEST_F(ElasticRecipeTest, NeedsReplicaGroups) {
  Process alone(launched(2, train({"elastic.batch=fixed"})), folder_);
  EXPECT_EQ(alone.wait(), 2);
  EXPECT_THAT(alone.error(), HasSubstr("fixed needs replica groups"));
  auto words = launched(2, train({}));
  words.insert(words.begin() + 1, "--replica-size=1");
  Process groups(words, folder_);
  EXPECT_EQ(groups.wait(), 2);
  EXPECT_THAT(
      groups.error(), HasSubstr("elastic.batch: none vs 2 replica groups"));
}

} // namespace
} // namespace weft::test
