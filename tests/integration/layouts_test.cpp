// One recipe on many meshes: the same weights at the start, the same losses and
// the same weights after 8 steps as on one rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/integration/training.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

constexpr int64_t kSteps = 8;

struct Layout {
  int64_t dp;
  int64_t tp;
  bool sequence_parallel;
  bool tie_embeddings;
  int64_t accumulation;
  double attention_dropout = 0;
};

std::string name_of(const Layout& layout) {
  return fmt::format(
      "dp{}tp{}{}{}accumulate{}",
      layout.dp,
      layout.tp,
      layout.sequence_parallel ? "Sequence" : "",
      layout.tie_embeddings ? "Tied" : "",
      layout.accumulation);
}

// heads and kv_heads 12 so that every tp divides them; ffn_dim and
// sequence_length do not.
config::Recipe recipe_of(const Layout& layout, const std::string& corpus) {
  constexpr int64_t kGlobalBatch = 36;
  config::Recipe recipe;
  recipe.name = "layouts";
  recipe.seed = 7;
  recipe.mesh = {layout.dp, layout.tp};
  recipe.model.dim = 48;
  recipe.model.layers = 2;
  recipe.model.heads = 12;
  recipe.model.kv_heads = 12;
  recipe.model.ffn_dim = 70;
  recipe.model.vocab_size = 257;
  recipe.model.tie_embeddings = layout.tie_embeddings;
  recipe.model.attention_dropout = layout.attention_dropout;
  recipe.tp.sequence_parallel = layout.sequence_parallel;
  recipe.data.paths = {corpus};
  recipe.data.sequence_length = 17;
  recipe.train.steps = kSteps;
  recipe.train.global_batch_size = kGlobalBatch;
  recipe.train.micro_batch_size =
      kGlobalBatch / (layout.dp * layout.accumulation);
  recipe.optimizer.lr = 3e-3;
  recipe.lr_schedule.warmup_steps = 3;
  recipe.eval.batches = 1;
  recipe.origins.source = "test";
  train::validate(recipe, layout.dp * layout.tp);
  return recipe;
}

Trace train(
    const Layout& layout,
    const std::string& corpus,
    const std::string& dtype = "float32",
    const config::DdpConfig& ddp = {}) {
  auto recipe = recipe_of(layout, corpus);
  recipe.train.dtype = config::choice_of<config::TrainDtype>(dtype).value();
  recipe.ddp = ddp;
  return integration::train(recipe);
}

// Mesh sizes dp, tp.
class Layouts : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(Layouts, TrainLikeOneRank) {
  const auto [dp, tp] = GetParam();
  const auto corpus = corpus_path();
  for (const bool tied : {false, true}) {
    for (const int64_t accumulation : {1, 3}) {
      const auto& expected =
          train_once(recipe_of({1, 1, false, tied, accumulation}, corpus));
      expect_training_happened(expected, kSteps);
      for (const bool sequence : {false, true}) {
        const Layout layout{dp, tp, sequence, tied, accumulation};
        SCOPED_TRACE(name_of(layout));
        if (tp > 1 || !sequence) {
          expect_same_training(train(layout, corpus), expected);
        }
      }
    }
  }
}

// The masks are those of one rank with the whole batch: without that the losses
// would be apart by the noise of dropout.
TEST_P(Layouts, DropTheSameAsOneRank) {
  const auto [dp, tp] = GetParam();
  const auto corpus = corpus_path();
  const auto& expected =
      train_once(recipe_of({1, 1, false, false, 1, 0.3}, corpus));
  expect_training_happened(expected, kSteps);
  const Layout layout{dp, tp, tp > 1, false, 3, 0.3};
  SCOPED_TRACE(name_of(layout));
  expect_same_training(train(layout, corpus), expected);
}

TEST(LayoutsWithDropout, MasksMatter) {
  const auto corpus = corpus_path();
  const auto& with =
      train_once(recipe_of({1, 1, false, false, 1, 0.3}, corpus));
  const auto& without = train_once(recipe_of({1, 1, false, false, 1}, corpus));
  EXPECT_EQ(with.initial.size(), without.initial.size());
  EXPECT_GT(std::abs(with.losses[5] - without.losses[5]), 1e-3);
}

// bfloat16 has 8 bits: sums in another order differ in the last one or two.
// What is trained, and where it starts, are the float32 values.
TEST(LayoutsInBfloat16, LossesAgreeToTheDtypesPrecision) {
  const auto corpus = corpus_path();
  const auto expected = train({1, 1, false, false, 1}, corpus, "bfloat16");
  const auto actual = train({2, 2, true, false, 1}, corpus, "bfloat16");
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  ASSERT_EQ(actual.losses.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(
        actual.losses[i], expected.losses[i], 1e-2 * expected.losses[i]);
  }
  for (const auto& [name, value] : expected.initial) {
    EXPECT_EQ(value.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::equal(actual.initial.at(name), value)) << name;
  }
}

struct DdpVariant {
  const char* name;
  config::DdpConfig ddp;
  /// The tolerance of the losses against one rank without reductions. 0 means
  /// the default tolerance.
  double tolerance = 0;
};

std::vector<DdpVariant> ddp_variants() {
  const auto with = [](auto set) {
    config::DdpConfig ddp;
    // Several buckets of each kind.
    ddp.bucket_cap_mb = 0.02;
    set(ddp);
    return ddp;
  };
  return {
      {"Coalesced",
       with([](auto& d) { d.bucket_mode = config::BucketMode::kCoalesced; })},
      {"PerParameter", with([](auto& d) {
         d.bucket_mode = config::BucketMode::kPerParameter;
       })},
      {"AutoBucketing", with([](auto& d) { d.auto_bucketing = true; })},
      {"Copies", with([](auto& d) { d.gradient_as_bucket_view = false; })},
      {"BatchedCopies", with([](auto& d) { d.batched_grad_copy = true; })},
      {"StaticGraph", with([](auto& d) { d.static_graph = true; })},
      {"Checked", with([](auto& d) { d.check_for_nan_in_grad = true; })},
      {"Bf16Hook",
       with([](auto& d) { d.comm_hook = config::DdpCommHook::kBf16Compress; }),
       2e-2},
      {"Fp16Hook",
       with([](auto& d) { d.comm_hook = config::DdpCommHook::kFp16Compress; }),
       2e-2},
      {"PowerSgd",
       with([](auto& d) {
         d.comm_hook = config::DdpCommHook::kPowerSgd;
         d.power_sgd_rank = 4;
         d.power_sgd_start_iter = 2;
       }),
       2e-1},
      {"MixedPrecision",
       with([](auto& d) {
         d.param_dtype = config::ParamDtype::kBFloat16;
         d.reduce_dtype = config::ReduceDtype::kFloat32;
       }),
       3e-2},
      {"ReducedInBfloat16",
       with([](auto& d) { d.reduce_dtype = config::ReduceDtype::kBFloat16; }),
       2e-2}};
}

class DdpSection : public ::testing::TestWithParam<DdpVariant> {};

TEST_P(DdpSection, TrainsLikeOneRank) {
  const auto& variant = GetParam();
  const auto corpus = corpus_path();
  const auto& expected = train_once(recipe_of({1, 1, false, false, 3}, corpus));
  for (const auto& [dp, tp] : {std::pair(2, 2), std::pair(3, 1)}) {
    const Layout layout{dp, tp, tp > 1, false, 3};
    SCOPED_TRACE(name_of(layout));
    const auto actual = train(layout, corpus, "float32", variant.ddp);
    expect_training_happened(actual, kSteps);
    if (variant.tolerance == 0) {
      expect_same_training(actual, expected);
    }
    for (size_t i = 0; i < actual.losses.size(); ++i) {
      EXPECT_NEAR(
          actual.losses[i],
          expected.losses[i],
          (variant.tolerance + 1e-4) * expected.losses[i]);
    }
    for (const auto& [name, value] : actual.final) {
      EXPECT_EQ(value.scalar_type(), at::kFloat) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Option,
    DdpSection,
    ::testing::ValuesIn(ddp_variants()),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    Layouts,
    ::testing::Values(
        std::pair(2, 1),
        std::pair(1, 2),
        std::pair(2, 2),
        std::pair(4, 1),
        std::pair(1, 4),
        std::pair(3, 1),
        std::pair(1, 3)),
    [](const auto& info) {
      return fmt::format("dp{}tp{}", info.param.first, info.param.second);
    });

} // namespace
} // namespace weft::integration
