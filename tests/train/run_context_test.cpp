#include "train/run_context.h"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/store/store.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/run.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kRanks = 2;

class RunContextTest : public ::testing::Test {
 protected:
  config::Recipe recipe(const std::vector<std::string>& overrides = {}) const {
    auto result = parse_recipe(
        fmt::format(
            "name: context\n"
            "mesh: {{dp: 2}}\n"
            "model: {{dim: 32, layers: 1, heads: 4, ffn_dim: 48}}\n"
            "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
            "train: {{steps: 4, global_batch_size: 8}}\n"
            "checkpoint: {{every: 2}}\n"
            "output_dir: {}\n",
            text_,
            run_.string()),
        "test",
        overrides);
    validate(result, kRanks);
    return result;
  }

  // The error of each rank that `act` throws, or "".
  template <class Act>
  std::vector<std::string> errors_of(const Act& act) const {
    std::vector<std::string> errors;
    std::mutex mutex;
    test::run_ranks(kRanks, [&](test::RankContext& self) {
      std::string error;
      try {
        act(self);
      } catch (const mesh::UsageError& refusal) {
        error = refusal.what_without_backtrace();
      }
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    });
    return errors;
  }
  std::vector<std::string> train(const config::Recipe& recipe) const {
    return errors_of([&](test::RankContext& self) {
      run_training(recipe, self.world, /*fresh=*/false);
    });
  }

  const fixtures::TempFolder folder_;
  const std::string text_ = folder_.write("text.txt", std::string(4000, 'w'));
  const fs::path run_ = folder_.path() / fs::path("run");
};

// The model of this recipe cannot be built, which the second call shows.
TEST_F(RunContextTest, RefusesALockedFolderBeforeTheModelIsBuilt) {
  const auto impossible = recipe(
      {"lora.rank=2",
       "lora.target_modules=[\"lm_head\"]",
       "model.tie_embeddings=true"});
  {
    fs::create_directories(run_ / "checkpoints");
    const checkpoint::StoreLock other(run_ / "checkpoints");
    EXPECT_THAT(
        train(impossible),
        AllOf(SizeIs(kRanks), Each(HasSubstr("another run is writing"))));
  }
  EXPECT_THAT(train(impossible), Each(HasSubstr("lora.target_modules")));
}

TEST_F(RunContextTest, RefusesARunOfAnotherModelOnAllRanks) {
  ASSERT_THAT(train(recipe()), Each(""));
  EXPECT_THAT(
      train(recipe({"model.dim=64"})),
      AllOf(
          SizeIs(kRanks),
          Each(HasSubstr("model.dim is 32 in the run and 64 here"))));
}

// Another process may delete a step of a folder that this group does not own.
TEST_F(RunContextTest, FallsBackIfTheNewestStepIsDeletedBeforeItIsLoaded) {
  ASSERT_THAT(train(recipe()), Each(""));
  const auto same = recipe();
  const auto errors = errors_of([&](test::RankContext& self) {
    auto context = open_run(same, self.world, {});
    EXPECT_EQ(context.store->newest_step(), 4);
    EXPECT_EQ(context.store->earlier()->state.step, 4);
    if (self.rank == 0) {
      fs::remove_all(checkpoint::step_path(run_ / "checkpoints", 4));
    }
    self.world.group().barrier();
    Trainer trainer(std::move(context.inputs), self.world);
    const auto resumed = context.store->resume(state_dicts(trainer.job()));
    EXPECT_EQ(resumed.value().state.step, 2);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(RunContextTest, CountsADamagedStepAsTheNewest) {
  ASSERT_THAT(train(recipe()), Each(""));
  std::ofstream(
      checkpoint::step_path(run_ / "checkpoints", 4) / "manifest.json")
      << "{";
  const auto same = recipe();
  const auto errors = errors_of([&](test::RankContext& self) {
    const auto context = open_run(same, self.world, {});
    EXPECT_EQ(context.store->newest_step(), 4);
    EXPECT_EQ(context.store->earlier()->state.step, 2);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(RunContextTest, ReadsNoCheckpointIfTheRunStartsOver) {
  ASSERT_THAT(train(recipe()), Each(""));
  const auto same = recipe();
  const auto errors = errors_of([&](test::RankContext& self) {
    const auto context = open_run(same, self.world, {.starts_over = true});
    EXPECT_FALSE(context.store->newest_step());
    EXPECT_FALSE(context.store->earlier());
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(fs::exists(run_ / "checkpoints.old"));
}

} // namespace
} // namespace weft::train
