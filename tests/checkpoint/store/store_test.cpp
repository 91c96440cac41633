#include "checkpoint/store/store.h"

#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <system_error>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::message_of_thrown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Store : public ::testing::Test {
 protected:
  void save(int64_t step) {
    test::SampleOptions options;
    options.step = step;
    test::write_sample(checkpoints_, {{"w", at::ones({2})}}, options);
  }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& folder : list_steps(checkpoints_)) {
      EXPECT_EQ(folder.path, step_path(checkpoints_, folder.step));
      steps.push_back(folder.step);
    }
    return steps;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : Folder::open(checkpoints_).list()) {
      names.push_back(entry.name);
    }
    return names;
  }

  test::TempFolder scratch_;
  fs::path checkpoints_ = scratch_.path() / "run" / "checkpoints";
};

TEST_F(Store, NewestFirstByNumber) {
  EXPECT_TRUE(steps().empty());
  for (const int64_t step : {9, 100, 20, 0}) {
    save(step);
  }
  EXPECT_THAT(steps(), ElementsAre(100, 20, 9, 0));
  EXPECT_EQ(read_latest(checkpoints_), 0); // the last that was saved
}

TEST_F(Store, OtherNamesAreNoSteps) {
  save(5);
  for (const std::string name :
       {"step-",
        "step-05",
        "step--1",
        "step-+1",
        "step-1x",
        "step-x",
        "Step-1",
        "step-1000000000000000000",
        "step-99999999999999999999",
        ".tmp-step-7-00",
        "damaged-step-8-00",
        "7",
        "step-1 "}) {
    fs::create_directory(checkpoints_ / name);
  }
  fs::create_directory_symlink("step-5", checkpoints_ / "step-6");
  test::write_file(checkpoints_ / "step-7", "a file");
  EXPECT_THAT(steps(), ElementsAre(5));
}

TEST_F(Store, NothingIsSeenBeforeTheCommit) {
  save(1);
  const auto temporary = begin_step(checkpoints_, 2);
  EXPECT_THAT(temporary.filename().string(), ::testing::StartsWith(".tmp-"));
  EXPECT_NE(begin_step(checkpoints_, 2), temporary);
  Manifest manifest;
  manifest.step = 2;
  write_manifest(Folder::open(temporary), manifest, true);
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_EQ(read_latest(checkpoints_), 1);
  commit_step(checkpoints_, temporary, 2, true);
  EXPECT_THAT(steps(), ElementsAre(2, 1));
  EXPECT_EQ(test::read_file(checkpoints_ / "latest"), "step-2\n");
  EXPECT_EQ(read_manifest(step_path(checkpoints_, 2)).step, 2);
}

TEST_F(Store, CommitNeverOverwrites) {
  save(3);
  const auto before = test::read_file(checkpoints_ / "step-3/manifest.json");
  const auto temporary = begin_step(checkpoints_, 3);
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>(
          [&] { commit_step(checkpoints_, temporary, 3, true); }),
      HasSubstr("step-3 already exists"));
  EXPECT_EQ(test::read_file(checkpoints_ / "step-3/manifest.json"), before);
  EXPECT_TRUE(fs::exists(temporary));
  discard_step(temporary);
  EXPECT_FALSE(fs::exists(temporary));
  EXPECT_EQ(read_latest(checkpoints_), 3);
  EXPECT_THAT(names(), ElementsAre("latest", "step-3"));
  // An empty folder of that name is not replaced either.
  fs::create_directory(checkpoints_ / "step-4");
  const auto other = begin_step(checkpoints_, 4);
  EXPECT_THROW(commit_step(checkpoints_, other, 4, true), mesh::UsageError);
}

TEST_F(Store, AStepFromOutsideMovesLatestForwardOnly) {
  save(3);
  for (const auto& [step, latest] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 3}, {5, 5}, {4, 5}}) {
    const auto temporary = begin_step(checkpoints_, step);
    Manifest manifest;
    manifest.step = step;
    write_manifest(Folder::open(temporary), manifest, true);
    commit_step(checkpoints_, temporary, step, true, MoveLatest::kForward);
    EXPECT_EQ(read_latest(checkpoints_), latest);
  }
  EXPECT_THAT(steps(), ElementsAre(5, 4, 3, 2));
}

TEST_F(Store, OnlyTemporaryFoldersAreAbandoned) {
  save(3);
  discard_step(step_path(checkpoints_, 3));
  EXPECT_THAT(steps(), ElementsAre(3));
}

TEST_F(Store, LeftoversOfKilledSavesGo) {
  save(1);
  const auto temporary = begin_step(checkpoints_, 2);
  test::write_file(temporary / "half", "x");
  test::write_file(checkpoints_ / ".tmp-latest-12", "step-");
  // Links are removed, not followed.
  fs::create_directory(scratch_.path() / "elsewhere");
  test::write_file(scratch_.path() / "elsewhere" / "file", "x");
  fs::create_directory_symlink(
      scratch_.path() / "elsewhere", temporary / "link");
  EXPECT_EQ(remove_temporaries(checkpoints_), 2);
  EXPECT_THAT(names(), ElementsAre("latest", "step-1"));
  EXPECT_TRUE(fs::exists(scratch_.path() / "elsewhere" / "file"));
  EXPECT_EQ(remove_temporaries(scratch_.path() / "none"), 0);
}

TEST_F(Store, LatestThatNamesNothingIsNone) {
  EXPECT_THROW(read_latest(checkpoints_), mesh::UsageError);
  save(5);
  for (const std::string text :
       {"", "5\n", "step-6\n", "../step-5\n", "step-5\n\n", "step-5x"}) {
    test::write_file(checkpoints_ / "latest", text);
    EXPECT_EQ(read_latest(checkpoints_), std::nullopt) << text;
  }
  test::write_file(checkpoints_ / "latest", "step-5");
  EXPECT_EQ(read_latest(checkpoints_), 5);
  fs::remove(checkpoints_ / "latest");
  EXPECT_EQ(read_latest(checkpoints_), std::nullopt);
  fs::create_symlink("step-5/manifest.json", checkpoints_ / "latest");
  EXPECT_EQ(read_latest(checkpoints_), std::nullopt);
}

TEST_F(Store, RetentionKeepsTheNewestAndLatest) {
  for (const int64_t step : {10, 20, 30, 40, 50}) {
    save(step);
  }
  EXPECT_THAT(prune_steps(checkpoints_, 3), ElementsAre(20, 10));
  EXPECT_THAT(steps(), ElementsAre(50, 40, 30));
  test::write_file(checkpoints_ / "latest", "step-30\n");
  EXPECT_THAT(prune_steps(checkpoints_, 1), ElementsAre(40));
  EXPECT_THAT(steps(), ElementsAre(50, 30));
  EXPECT_THROW(prune_steps(checkpoints_, 0), mesh::UsageError);
  EXPECT_THAT(names(), ElementsAre("latest", "step-30", "step-50"));
}

TEST_F(Store, PinnedStepStaysUntilItsReaderIsDone) {
  for (const int64_t step : {1, 2, 3}) {
    save(step);
  }
  {
    const StepPin pin(step_path(checkpoints_, 1));
    const StepPin again(step_path(checkpoints_, 1));
    EXPECT_THAT(prune_steps(checkpoints_, 1), ElementsAre(2));
    EXPECT_FALSE(remove_step(checkpoints_, 1));
    EXPECT_THAT(steps(), ElementsAre(3, 1));
    EXPECT_TRUE(verify(step_path(checkpoints_, 1)).empty());
  }
  EXPECT_TRUE(remove_step(checkpoints_, 1));
  EXPECT_THAT(steps(), ElementsAre(3));
}

TEST_F(Store, StepThatIsBeingDeletedCannotBePinned) {
  save(1);
  const auto path = step_path(checkpoints_, 1);
  const auto folder = Folder::open(path);
  ASSERT_EQ(::flock(folder.fd(), LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(
      message_of_thrown<CheckpointError>([&] { StepPin pin(path); }),
      HasSubstr("deleted"));
  EXPECT_THROW(StepPin(step_path(checkpoints_, 9)), mesh::UsageError);
}

TEST_F(Store, StepSetAsideFreesItsNumber) {
  save(4);
  const auto aside = quarantine_step(checkpoints_, 4);
  EXPECT_TRUE(steps().empty());
  EXPECT_TRUE(verify(aside).empty());
  EXPECT_EQ(remove_temporaries(checkpoints_), 0);
  save(4);
  EXPECT_THAT(steps(), ElementsAre(4));
}

TEST_F(Store, OneWriterAtATime) {
  {
    const StoreLock lock(checkpoints_);
    const auto message = message_of_thrown<mesh::UsageError>(
        [&] { StoreLock second(checkpoints_); });
    EXPECT_THAT(message, HasSubstr(checkpoints_.string()));
    EXPECT_THAT(message, HasSubstr("process " + std::to_string(::getpid())));
  }
  const StoreLock again(checkpoints_);
}

TEST_F(Store, LockEndsWithItsProcess) {
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const StoreLock lock(checkpoints_);
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>([&] { StoreLock l(checkpoints_); }),
      HasSubstr("process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  const StoreLock lock(checkpoints_);
}

TEST_F(Store, FolderThatCannotBeWrittenIsRefusedBeforeAnyStep) {
  test::write_file(scratch_.path() / "run", "a file");
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>([&] { StoreLock l(checkpoints_); }),
      HasSubstr(checkpoints_.string()));
}

} // namespace
} // namespace weft::checkpoint
