// Which samples a run takes that goes on on other meshes.

#include <map>
#include <memory>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "data/batch_loader.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"
#include "train/store/train_state.h"

namespace weft::data {
namespace {

using Taken = std::map<int64_t, int>;

// Counts how often each sample is asked for.
class CountingData : public Dataset {
 public:
  explicit CountingData(Taken& taken) : taken_(taken) {}
  int64_t num_train_samples() const override { return 100; }
  int64_t num_heldout_samples() const override { return 1; }
  Batch train(std::span<const int64_t> samples) override {
    for (const int64_t sample : samples) {
      ++taken_[sample];
    }
    const auto size = static_cast<int64_t>(samples.size());
    return {at::zeros({size, 1}), at::zeros({size, 1})};
  }
  Batch heldout(std::span<const int64_t> samples) override {
    return train(samples);
  }
  std::string fingerprint_text() const override { return "counted"; }
  std::string describe() const override { return "counted"; }

 private:
  Taken& taken_;
};

struct Leg {
  int64_t dp;
  int64_t tp;
  int64_t micro;
  int64_t steps;
};

// What a checkpoint of one leg tells the next.
train::TrainState through_a_checkpoint(
    const train::TrainState& state,
    const config::Recipe& recipe) {
  return train::parse_train_state(to_json(state, recipe), "step");
}

// 3 epochs and more, in another order of replicas and accumulation each time.
TEST(DataCursor, EachSampleIsTakenOnceOnChangingMeshes) {
  const int64_t global = 24;
  auto recipe = train::parse_recipe(fixtures::kMinRecipe, "r.yaml");
  recipe.train.global_batch_size = global;
  Taken taken;
  train::TrainState state;
  for (const Leg& leg :
       {Leg{2, 2, 6, 5}, Leg{1, 2, 8, 3}, Leg{3, 1, 4, 4}, Leg{4, 1, 6, 2}}) {
    std::vector<BatchLoader> replicas;
    for (int64_t r = 0; r < leg.dp; ++r) {
      replicas.emplace_back(
          std::make_unique<CountingData>(taken),
          BatchShape{
              .global_batch_size = global,
              .micro_batch_size = leg.micro,
              .dp = leg.dp,
              .dp_rank = r});
    }
    state = through_a_checkpoint(state, recipe);
    for (int64_t step = 0; step < leg.steps; ++step) {
      for (auto& replica : replicas) {
        for (int64_t a = 0; a < replica.accumulation_steps(); ++a) {
          replica.train(state.next_sample, a);
        }
      }
      ++state.step;
      state.next_sample += global;
    }
  }
  EXPECT_EQ(state.step, 14);
  ASSERT_EQ(taken.size(), 14 * global);
  EXPECT_EQ(taken.begin()->first, 0);
  EXPECT_EQ(taken.rbegin()->first, 14 * global - 1);
  for (const auto& [sample, times] : taken) {
    EXPECT_EQ(times, 1) << sample;
  }
}

TEST(TrainState, ComesBackWhole) {
  const auto recipe = train::parse_recipe(fixtures::kMinRecipe, "r.yaml");
  const train::TrainState state{
      .step = 7,
      .tokens = 12345,
      .next_sample = 168,
      .data_fingerprint = "a\"b"};
  EXPECT_EQ(through_a_checkpoint(state, recipe), state);
}

} // namespace
} // namespace weft::data
