// Runs that are killed and go on: the real programs, with kill -9.
// resume_meshes_test.cpp goes on on more meshes, whose ranks are threads.

#include <csignal>
#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/copy_run.h"
#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kAllSteps = 20;

struct Mesh {
  int dp;
  int tp;
  int dp_shard = 1;

  int size() const { return dp * dp_shard * tp; }
};
std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
  out << "dp" << mesh.dp << "tp" << mesh.tp;
  return mesh.dp_shard == 1 ? out : out << "shard" << mesh.dp_shard;
}

class ResumeTest : public ProcessTest {
 protected:
  static void SetUpTestSuite() {
    finished_ = std::make_unique<test::TempFolder>();
  }
  static void TearDownTestSuite() { finished_.reset(); }

  /// Trains on two ranks of tensor parallelism to the last step, or copies the
  /// folder that another test trained.
  void finished_run(const std::string& output) const {
    const auto kept = *finished_ / "run";
    if (!fs::exists(kept)) {
      expect_success(run_words({1, 2}, "run"));
      fs::rename(folder_ / "run", kept);
    }
    fs::copy(kept, folder_ / output, fs::copy_options::recursive);
  }

  /// 24 samples a step, so that 1, 2, 3 and 4 replicas divide them.
  static Words
  run_words(const Mesh& mesh, const std::string& output, Words more = {}) {
    Words words{
        "mesh.dp=" + std::to_string(mesh.dp),
        "mesh.dp_shard=" + std::to_string(mesh.dp_shard),
        "mesh.tp=" + std::to_string(mesh.tp),
        "train.steps=" + std::to_string(kAllSteps),
        "train.global_batch_size=24",
        "train.micro_batch_size=" +
            std::to_string(24 / (mesh.dp * mesh.dp_shard) / 2),
        "model.kv_heads=12",
        "eval.every=10",
        "checkpoint.every=2",
        "checkpoint.keep=0",
        "output_dir=" + output};
    words.insert(words.end(), more.begin(), more.end());
    return launched(mesh.size(), train(words));
  }

  /// Blocks until the run has saved `step`.
  void wait_for_step(Process& run, const std::string& output, int step) const {
    const auto folder =
        folder_ / output / "checkpoints" / ("step-" + std::to_string(step));
    while (!fs::exists(folder)) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.error();
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  int diff(const std::string& a, const std::string& b) const {
    const std::string step = "/checkpoints/step-" + std::to_string(kAllSteps);
    Process run({WEFT_WEFT, "checkpoint", "diff", a + step, b + step}, folder_);
    const int code = run.wait().value_or(-1);
    if (code != 0) {
      ADD_FAILURE() << run.output() << run.error();
    }
    return code;
  }

  void expect_whole_metrics(const std::string& run) const {
    const auto lines = metrics(run);
    ASSERT_EQ(lines.size(), kAllSteps);
    for (int i = 0; i < kAllSteps; ++i) {
      EXPECT_EQ(lines[i].at("step"), i + 1);
      EXPECT_EQ(lines[i].at("tokens"), (i + 1) * 24 * 32);
    }
  }

  static std::vector<std::string> step_folders(const fs::path& checkpoints) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      if (entry.path().filename().string().starts_with("step-")) {
        names.push_back(entry.path().filename());
      }
    }
    return names;
  }

  static inline std::unique_ptr<test::TempFolder> finished_;
};

class KilledOnMesh : public ResumeTest,
                     public ::testing::WithParamInterface<Mesh> {};

TEST_P(KilledOnMesh, GoesOnBitForBit) {
  const auto mesh = GetParam();
  expect_success(run_words(mesh, "straight"));
  std::mt19937 random(mesh.dp * 10 + mesh.tp);
  {
    Process run(run_words(mesh, "killed"), folder_);
    ASSERT_NO_FATAL_FAILURE(wait_for_step(run, "killed", 10));
    const auto workers = workers_of(run.pid());
    const int rank = static_cast<int>(random() % mesh.size());
    ASSERT_TRUE(workers.contains(rank));
    kill(workers.at(rank).pid(), SIGKILL);
    EXPECT_EQ(run.wait(seconds(10)), 137);
  }
  Process rest(run_words(mesh, "killed"), folder_);
  ASSERT_EQ(rest.wait(), 0) << rest.error();
  EXPECT_THAT(
      rest.output(), HasSubstr("resumes from killed/checkpoints/step-"));
  EXPECT_EQ(diff("straight", "killed"), 0);
  EXPECT_EQ(losses(metrics("killed")), losses(metrics("straight")));
  expect_whole_metrics("killed");
}

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    KilledOnMesh,
    ::testing::Values(
        Mesh{2, 2},
        Mesh{3, 1},
        Mesh{1, 2},
        Mesh{1, 1, 3},
        Mesh{2, 1, 2}),
    ::testing::PrintToStringParamName());

// PowerSGD's errors and factors come back too, and so do the buckets that they
// belong to, measured ones and ones in which tensor-parallel ranks differ.
TEST_F(ResumeTest, GoesOnBitForBitWithACommHook) {
  const Words hook{"ddp.comm_hook=powersgd", "ddp.power_sgd_start_iter=3"};
  // The feed forward's parts are of 49 and 48 rows of 48 floats, and the cap
  // lies between two of either.
  const auto uneven_cap = std::to_string(2 * 48.5 * 48 * 4 / (1 << 20));
  for (const auto& more : std::vector<Words>{
           {"ddp.auto_bucketing=true"},
           {"model.ffn_dim=97", "ddp.bucket_cap_mb=" + uneven_cap}}) {
    SCOPED_TRACE(more[0]);
    auto words = hook;
    words.insert(words.end(), more.begin(), more.end());
    const std::string first = "first_" + std::to_string(more.size());
    const std::string again = "again_" + std::to_string(more.size());
    expect_success(run_words({2, 2}, first, words));
    copy_run_at(10, folder_ / first, folder_ / again);
    expect_success(run_words({2, 2}, again, words));
    EXPECT_EQ(diff(first, again), 0);
    EXPECT_EQ(losses(metrics(again)), losses(metrics(first)));
  }
  std::ifstream manifest(folder_ / "first_2/checkpoints/step-10/manifest.json");
  const auto buckets =
      nlohmann::json::parse(manifest).at("layout").at("buckets");
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_NE(buckets[0], buckets[1]);
}

TEST_F(ResumeTest, ACommHookStartsAnewOnAnotherMesh) {
  const Words hook{"ddp.comm_hook=powersgd", "ddp.power_sgd_start_iter=3"};
  expect_success(run_words({2, 1}, "first", hook));
  copy_run_at(10, folder_ / "first", folder_ / "again");
  Process run(run_words({1, 2}, "again", hook), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      run.output(),
      HasSubstr("the state of the comm hook was not loaded, and it starts from "
                "scratch"));
}

TEST_F(ResumeTest, GoesOnOnOtherMeshes) {
  expect_success(run_words({2, 2}, "straight"));
  const auto expected = losses(metrics("straight"));
  // The first ten steps of it, as a folder of their own.
  for (const Mesh mesh : {Mesh{3, 1}, Mesh{1, 2, 2}}) {
    SCOPED_TRACE(::testing::Message() << mesh);
    const std::string name = ::testing::PrintToString(mesh);
    copy_run_at(10, folder_ / "straight", folder_ / name);
    Process run(run_words(mesh, name), folder_);
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_THAT(
        run.output(),
        HasSubstr("step 10, 240 samples and 7680 tokens done on dp=2 tp=2"));
    expect_whole_metrics(name);
    const auto actual = losses(metrics(name));
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], 1e-4 * expected[i]) << i;
    }
  }
}

// Each leg takes the samples after those of the one before.
TEST_F(ResumeTest, GoesOnFromMeshToMesh) {
  const auto words = [&](const Mesh& mesh, const std::string& run, int steps) {
    return run_words(
        mesh,
        run,
        {"lr_schedule.type=constant", "train.steps=" + std::to_string(steps)});
  };
  expect_success(words({2, 2}, "straight", kAllSteps));
  int done = 0;
  for (const auto& [mesh, steps] :
       {std::pair{Mesh{2, 2}, 7},
        {Mesh{1, 1, 3}, 11},
        {Mesh{1, 2}, 15},
        {Mesh{3, 1}, kAllSteps}}) {
    SCOPED_TRACE(::testing::Message() << mesh);
    Process run(words(mesh, "legs", steps), folder_);
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_THAT(
        run.output(),
        HasSubstr(
            done == 0 ? "starts from step 0"
                      : "step " + std::to_string(done) + ", " +
                            std::to_string(done * 24) + " samples and " +
                            std::to_string(done * 24 * 32) + " tokens done"));
    done = steps;
  }
  expect_whole_metrics("legs");
  for (int i = 0; i < kAllSteps; ++i) {
    const double straight = metrics("straight")[i].at("loss");
    EXPECT_NEAR(metrics("legs")[i].at("loss"), straight, 1e-4 * straight) << i;
  }
}

TEST_F(ResumeTest, AFinishedRunSaysSo) {
  finished_run("run");
  const auto before = metrics_text("run");
  Process again(run_words({1, 2}, "run"), folder_);
  EXPECT_EQ(again.wait(), 0) << again.error();
  EXPECT_THAT(again.output(), HasSubstr("finished already, at step 20"));
  EXPECT_EQ(metrics_text("run"), before);

  Process fresh(run_words({1, 2}, "run", {"--fresh"}), folder_);
  EXPECT_EQ(fresh.wait(), 0) << fresh.error();
  EXPECT_THAT(
      fresh.output(),
      AllOf(HasSubstr("starts from step 0"), HasSubstr("checkpoints.old")));
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints.old/step-20"));
  EXPECT_EQ(metrics("run").size(), kAllSteps);
  EXPECT_EQ(test::read_text(folder_ / "run/metrics.jsonl.old"), before);

  Process longer(run_words({1, 2}, "run", {"train.steps=22"}), folder_);
  EXPECT_EQ(longer.wait(), 0) << longer.error();
  EXPECT_EQ(metrics("run").size(), 22);
}

TEST_F(ResumeTest, KeepsTheNewestFew) {
  expect_success(run_words({1, 1}, "run", {"checkpoint.keep=2"}));
  EXPECT_THAT(
      step_folders(folder_ / "run/checkpoints"),
      ::testing::UnorderedElementsAre("step-18", "step-20"));
  EXPECT_EQ(test::read_text(folder_ / "run/checkpoints/latest"), "step-20\n");
}

TEST_F(ResumeTest, ADamagedCheckpointIsSkippedForTheOneBefore) {
  finished_run("straight");
  finished_run("run");
  const auto checkpoints = folder_ / "run/checkpoints";
  // The last one: a flipped byte. The one before: half a manifest.
  for (const auto& entry : fs::directory_iterator(checkpoints / "step-20")) {
    if (entry.path().extension() == ".safetensors") {
      std::fstream file(
          entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-100, std::ios::end);
      file.put('\x7f');
    }
  }
  fs::resize_file(checkpoints / "step-18/manifest.json", 1000);
  Process run(run_words({1, 2}, "run"), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      run.output(),
      AllOf(
          HasSubstr("cannot resume from run/checkpoints/step-20"),
          HasSubstr(".safetensors"),
          HasSubstr("cannot resume from run/checkpoints/step-18"),
          HasSubstr("manifest.json"),
          HasSubstr("resumes from run/checkpoints/step-16")));
  EXPECT_EQ(diff("straight", "run"), 0);
  expect_whole_metrics("run");
}

TEST_F(ResumeTest, NoSoundCheckpointIsAnError) {
  expect_success(run_words({1, 2}, "run", {"checkpoint.keep=2"}));
  for (const auto* step : {"step-18", "step-20"}) {
    fs::remove(folder_ / "run/checkpoints" / step / "manifest.json");
  }
  const auto before = metrics_text("run");
  Process run(run_words({1, 2}, "run"), folder_);
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(
      run.last_error_line(),
      AllOf(
          StartsWith("ERROR 4 rank="),
          HasSubstr("none of the 2 checkpoints in run/checkpoints"),
          HasSubstr("--fresh")));
  EXPECT_EQ(metrics_text("run"), before) << "nothing may be lost";
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/step-20"));
}

TEST_F(ResumeTest, AnotherModelOrOtherDataIsRefused) {
  finished_run("run");
  const auto refused = [&](const Words& change) {
    Process run(run_words({1, 2}, "run", change), folder_);
    EXPECT_EQ(run.wait(), 2);
    return run.last_error_line();
  };
  EXPECT_THAT(
      refused({"model.ffn_dim=120", "data.sequence_length=16"}),
      AllOf(
          HasSubstr("model.ffn_dim is 96 in the run and 120 here"),
          HasSubstr("data.sequence_length is 32 in the run and 16 here"),
          HasSubstr("--fresh")));
  EXPECT_THAT(refused({"seed=7"}), HasSubstr("seed is 42 in the run"));
  write("corpus.txt", test::read_text(folder_ / "corpus.txt") + "more\n");
  EXPECT_THAT(refused({}), HasSubstr("data.paths"));
}

TEST_F(ResumeTest, TwoRunsCannotHaveOneFolder) {
  Process first(run_words({1, 1}, "run", {"train.steps=1000000"}), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_step(first, "run", 2));
  Process second(run_words({1, 1}, "run", {"train.steps=1000000"}), folder_);
  EXPECT_EQ(second.wait(), 2);
  EXPECT_THAT(
      second.last_error_line(),
      AllOf(HasSubstr("run/checkpoints"), HasSubstr("process")));
  EXPECT_FALSE(first.wait(seconds(0))) << "it trains on";
}

// A save that cannot be written does not end the run.
TEST_F(ResumeTest, AFailedSaveIsTriedAgainTheNextTime) {
  // step-4 is taken by a file of the user's.
  fs::create_directories(folder_ / "run/checkpoints");
  write("run/checkpoints/step-4", "mine");
  Process run(run_words({1, 2}, "run"), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("step 4 was not saved: rank 0"));
  EXPECT_TRUE(fs::is_directory(folder_ / "run/checkpoints/step-6"));
  EXPECT_EQ(test::read_text(folder_ / "run/checkpoints/step-4"), "mine");
  expect_whole_metrics("run");
}

TEST_F(ResumeTest, AFolderThatCannotBeWrittenIsRefusedBeforeTheFirstStep) {
  write("run", "a file, not a folder");
  Process run(run_words({1, 2}, "run"), folder_);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("run"));
  EXPECT_THAT(run.output(), Not(HasSubstr("step 1")));
}

} // namespace
} // namespace weft::test
