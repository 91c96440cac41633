// The folder of a run, where a process ended in the middle of --fresh.

#include "train/store/run_store.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/store/store.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunStoreTest : public ::testing::Test {
 protected:
  RunStoreTest() {
    recipe_.output_dir = (folder_.path() / fs::path("run")).string();
    run_ = recipe_.output_dir;
    fs::create_directories(run_ / "checkpoints/step-10");
    write("checkpoints/step-10/manifest.json", "{}");
    write("metrics.jsonl", kOldMetrics);
  }

  void write(const fs::path& name, const std::string& text) const {
    std::ofstream(run_ / name) << text;
  }
  std::string read(const fs::path& name) const {
    std::ifstream file(run_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // What a process does before its first step; what it fails with, or "".
  std::string start(bool fresh) {
    std::string failure;
    test::run_ranks(1, [&](test::RankContext& self) {
      try {
        const RunStore store(
            recipe_,
            self.world,
            fresh,
            base::Logger({.write = [&](const std::string& line) {
              said_ += line + "\n";
            }}));
      } catch (const std::exception& error) {
        failure = error.what();
      }
    });
    return failure;
  }
  void expect_set_aside() const {
    EXPECT_TRUE(checkpoint::list_steps(run_ / "checkpoints").empty());
    EXPECT_EQ(checkpoint::list_steps(run_ / "checkpoints.old").size(), 1);
    EXPECT_FALSE(fs::exists(run_ / "checkpoints.aside"));
    EXPECT_EQ(read("metrics.jsonl.old"), kOldMetrics);
    EXPECT_EQ(read("metrics.jsonl"), "");
  }

  static constexpr const char* kOldMetrics = "{\"step\": 10}\n";
  fixtures::TempFolder folder_;
  config::Recipe recipe_;
  fs::path run_;
  std::string said_;
};

TEST_F(RunStoreTest, StartingOverRenamesCheckpointsAndMetrics) {
  EXPECT_EQ(start(/*fresh=*/true), "");
  expect_set_aside();
  EXPECT_THAT(said_, HasSubstr("checkpoints.old"));
  EXPECT_EQ(
      start(/*fresh=*/true), ""); // nothing to set apart: what is there stays
  expect_set_aside();
}

// Every state that a kill leaves; the next start is one without --fresh.
TEST_F(RunStoreTest, TheNextStartEndsWhatAKillLeft) {
  fs::rename(run_ / "checkpoints", run_ / "checkpoints.aside");
  EXPECT_EQ(start(/*fresh=*/false), ""); // right after the first rename
  expect_set_aside();

  fs::rename(run_ / "checkpoints.old", run_ / "checkpoints.aside");
  EXPECT_EQ(
      start(/*fresh=*/false), ""); // metrics were moved, the folder not yet
  expect_set_aside();

  fs::copy(
      run_ / "checkpoints.old",
      run_ / "checkpoints.aside",
      fs::copy_options::recursive);
  write("metrics.jsonl", ""); // of a start that looked whether it can write
  EXPECT_EQ(start(/*fresh=*/true), ""); // an older one was there
  expect_set_aside();
}

// A failure in the middle, and not of our making.
TEST_F(RunStoreTest, AFailureBetweenTheRenamesLeavesNothingHalf) {
  fs::create_directories(run_ / "metrics.jsonl.old/in_the_way");
  EXPECT_NE(start(/*fresh=*/true), "");
  EXPECT_EQ(read("metrics.jsonl"), kOldMetrics);
  fs::remove_all(run_ / "metrics.jsonl.old");
  EXPECT_EQ(start(/*fresh=*/false), "");
  expect_set_aside();
}

// Between the two locks another run came first: it owns the folder.
TEST_F(RunStoreTest, WhoHasTheLockOfTheNewFolderIsNotDisturbed) {
  fs::rename(run_ / "checkpoints", run_ / "checkpoints.aside");
  const checkpoint::StoreLock other(run_ / "checkpoints");
  EXPECT_THAT(start(/*fresh=*/true), HasSubstr("another run is writing"));
  EXPECT_TRUE(fs::exists(run_ / "checkpoints.aside"));
  EXPECT_EQ(read("metrics.jsonl"), kOldMetrics);
}

} // namespace
} // namespace weft::train
