// A recipe with mesh.dp_shard trains what one with mesh.dp does.
#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/compare.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "tests/config/fixtures.h"
#include "tests/integration/training.h"
#include "tests/support/run_ranks.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

constexpr int64_t kShardedSteps = 4;

/// `model`: a type. Sizes that neither 3 nor 4 ranks divide.
config::Recipe small_recipe(const std::string& model, int64_t ranks) {
  constexpr int64_t kGlobalBatch = 24;
  config::Recipe recipe;
  recipe.name = "fully-sharded";
  recipe.seed = 7;
  recipe.mesh.dp = ranks;
  recipe.model.type = model;
  recipe.model.dim = 20;
  recipe.model.layers = 2;
  recipe.model.heads = 2;
  recipe.model.ffn_dim = 35;
  if (model != "gpt2") {
    recipe.model.kv_heads = 1;
  }
  if (model == "moe") {
    recipe.model.num_experts = 3;
  }
  recipe.model.vocab_size = 257;
  recipe.data.paths = {corpus_path()};
  recipe.data.sequence_length = 17;
  recipe.train.steps = kShardedSteps;
  recipe.train.global_batch_size = kGlobalBatch;
  recipe.train.micro_batch_size = kGlobalBatch / ranks / 2;
  recipe.train.max_grad_norm = 0;
  recipe.optimizer.lr = 3e-2;
  recipe.lr_schedule.warmup_steps = 2;
  recipe.eval.batches = 1;
  recipe.origins.source = "test";
  return recipe;
}

config::Recipe sharded(config::Recipe recipe, const config::FsdpConfig& fsdp) {
  recipe.mesh.dp_shard = recipe.mesh.dp;
  recipe.mesh.dp = 1;
  recipe.fsdp = fsdp;
  return recipe;
}

Trace run(config::Recipe recipe, int64_t ranks) {
  train::validate(recipe, ranks);
  return train(recipe);
}

void expect_same_bits(const Trace& found, const Trace& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.eval_loss, expected.eval_loss);
  ASSERT_EQ(found.final.size(), expected.final.size());
  for (const auto& [name, value] : expected.initial) {
    EXPECT_TRUE(at::equal(found.initial.at(name), value)) << name;
  }
  for (const auto& [name, value] : expected.final) {
    EXPECT_TRUE(at::equal(found.final.at(name), value))
        << name << " differs by " << (found.final.at(name) - value).abs().max();
  }
}

struct FsdpVariant {
  std::string name;
  config::FsdpConfig fsdp;
};

std::vector<FsdpVariant> fsdp_variants() {
  const auto with = [](auto set) {
    config::FsdpConfig fsdp;
    fsdp.accumulate = config::Accumulate::kLocal;
    set(fsdp);
    return fsdp;
  };
  return {
      {"Default", with([](auto&) {})},
      {"Always", with([](auto& f) {
         f.reshard_after_forward = config::ReshardAfterForward::kAlways;
       })},
      {"Never", with([](auto& f) {
         f.reshard_after_forward = config::ReshardAfterForward::kNever;
       })},
      {"NothingAhead", with([](auto& f) {
         f.forward_prefetch = 0;
         f.backward_prefetch = config::BackwardPrefetch::kNone;
         f.reduce_in_flight = 0;
       })},
      {"AllAhead", with([](auto& f) {
         f.forward_prefetch = 9;
         f.backward_prefetch = config::BackwardPrefetch::kPost;
         f.reduce_in_flight = 9;
       })},
      {"OneUnit", with([](auto& f) { f.units = {}; })},
      {"SmallUnits", with([](auto& f) { f.units = {"**.q_proj"}; })}};
}

class FullyShardedRecipe : public ::testing::TestWithParam<std::string> {};

TEST_P(FullyShardedRecipe, TrainsAsReplicasToTheBit) {
  for (const int64_t ranks : {3, 4}) {
    const auto recipe = small_recipe(GetParam(), ranks);
    const auto expected = run(recipe, ranks);
    expect_training_happened(expected, kShardedSteps);
    for (const auto& variant : fsdp_variants()) {
      if (ranks == 4 && variant.name != "Default") {
        continue;
      }
      SCOPED_TRACE(variant.name + " on " + std::to_string(ranks));
      expect_same_bits(run(sharded(recipe, variant.fsdp), ranks), expected);
    }
  }
}

// Sums of micro-batches in another order, and the norm of the gradients' rows.
TEST_P(FullyShardedRecipe, ShardedAccumulationAndClippingAreClose) {
  constexpr int64_t kRanks = 3;
  auto recipe = small_recipe(GetParam(), kRanks);
  recipe.train.max_grad_norm = 0.5;
  const auto expected = run(recipe, kRanks);
  expect_same_training(run(sharded(recipe, {}), kRanks), expected, 1e-5);
}

// One key/value head on two ranks of tp is replicated there.
TEST_P(FullyShardedRecipe, TrainsAsReplicasBesideTensorParallelism) {
  struct Case {
    int64_t shards;
    int64_t tp;
    int64_t kv_heads;
    bool is_parallel_outside;
  };
  for (const auto& each :
       {Case{2, 2, 2, true}, {3, 2, 2, true}, {2, 2, 1, false}}) {
    auto recipe = small_recipe(GetParam(), each.shards);
    recipe.mesh.tp = each.tp;
    recipe.tp.sequence_parallel = each.is_parallel_outside;
    recipe.tp.loss_parallel = each.is_parallel_outside;
    if (GetParam() != "gpt2") {
      recipe.model.kv_heads = each.kv_heads;
    }
    const auto ranks = each.shards * each.tp;
    SCOPED_TRACE(
        c10::str(recipe.mesh.to_string(), " kv_heads=", each.kv_heads));
    const auto expected = run(recipe, ranks);
    expect_training_happened(expected, kShardedSteps);
    config::FsdpConfig fsdp;
    fsdp.accumulate = config::Accumulate::kLocal;
    expect_same_bits(run(sharded(recipe, fsdp), ranks), expected);
  }
}

// Sums over the shards and then over their replicas are added in another order.
TEST_P(FullyShardedRecipe, HybridTrainsAsReplicas) {
  for (const auto& [dp, shards, tp] :
       {std::tuple(2, 2, 1), {2, 3, 1}, {2, 2, 2}}) {
    auto recipe = small_recipe(GetParam(), dp * shards);
    recipe.mesh.tp = tp;
    if (GetParam() != "gpt2") {
      recipe.model.kv_heads = 2;
    }
    recipe.train.max_grad_norm = 0.5;
    const int64_t ranks = dp * shards * tp;
    const auto expected = run(recipe, ranks);
    for (const std::string accumulate : {"sharded", "local"}) {
      auto hybrid = recipe;
      hybrid.mesh.dp = dp;
      hybrid.mesh.dp_shard = shards;
      hybrid.fsdp.accumulate =
          config::choice_of<config::Accumulate>(accumulate).value();
      SCOPED_TRACE(hybrid.mesh.to_string() + ", " + accumulate);
      expect_same_training(run(hybrid, ranks), expected, 1e-5);
    }
  }
}

// Recomputation gathers a unit for its backward, which needs it anyway.
TEST_P(FullyShardedRecipe, TrainsAsReplicasWithRecomputedBlocks) {
  constexpr int64_t kRanks = 3;
  auto recipe = small_recipe(GetParam(), kRanks);
  recipe.train.activation_checkpoint = config::ActivationCheckpoint::kFull;
  const auto expected = run(recipe, kRanks);
  for (const std::string prefetch : {"pre", "post", "none"}) {
    for (const std::string reshard : {"auto", "always", "never"}) {
      SCOPED_TRACE(prefetch + ", " + reshard);
      config::FsdpConfig fsdp;
      fsdp.accumulate = config::Accumulate::kLocal;
      fsdp.backward_prefetch =
          config::choice_of<config::BackwardPrefetch>(prefetch).value();
      fsdp.reshard_after_forward =
          config::choice_of<config::ReshardAfterForward>(reshard).value();
      expect_same_bits(run(sharded(recipe, fsdp), kRanks), expected);
    }
  }
}

TEST_P(FullyShardedRecipe, TrainsInBFloat16AsReplicas) {
  for (const auto& [shards, tp] : {std::pair(3, 1), {2, 2}}) {
    for (const std::string reduce_dtype : {"none", "float32"}) {
      auto recipe = small_recipe(GetParam(), shards);
      recipe.mesh.tp = tp;
      if (GetParam() != "gpt2") {
        recipe.model.kv_heads = 2;
      }
      recipe.train.micro_batch_size *= 2;
      recipe.train.dtype = config::TrainDtype::kBFloat16;
      SCOPED_TRACE(recipe.mesh.to_string() + ", " + reduce_dtype);
      auto replicated = recipe;
      replicated.ddp.reduce_dtype =
          config::choice_of<config::ReduceDtype>(reduce_dtype).value();
      const auto expected = run(replicated, shards * tp);
      expect_training_happened(expected, kShardedSteps);
      config::FsdpConfig fsdp;
      fsdp.reduce_dtype =
          config::choice_of<config::ReduceDtype>(reduce_dtype).value();
      expect_same_bits(run(sharded(recipe, fsdp), shards * tp), expected);
    }
  }
}

// Of a unit some parameters are frozen, of others all.
TEST_P(FullyShardedRecipe, TrainsAdaptersAsReplicas) {
  for (const auto& [shards, tp] : {std::pair(3, 1), {2, 2}}) {
    auto recipe = small_recipe(GetParam(), shards);
    recipe.mesh.tp = tp;
    if (GetParam() != "gpt2") {
      recipe.model.kv_heads = 2;
    }
    recipe.lora.rank = 3;
    recipe.lora.target_modules = {"**.1.**.q_proj", "**.1.**.o_proj"};
    if (GetParam() == "gpt2") {
      recipe.lora.target_modules = {"**.1.**.q_proj"};
    }
    SCOPED_TRACE(recipe.mesh.to_string());
    const auto expected = run(recipe, shards * tp);
    config::FsdpConfig fsdp;
    fsdp.accumulate = config::Accumulate::kLocal;
    expect_same_bits(run(sharded(recipe, fsdp), shards * tp), expected);
  }
}

// Weights, moments and step counts, bit for bit.
TEST(FullyShardedCheckpoint, EachMeshLoadsWhatAnyOtherSaved) {
  constexpr int64_t kTrained = 2;
  const fixtures::TempFolder temp;
  std::vector<config::Recipe> recipes;
  for (const auto& [dp, shards, tp] :
       {std::tuple(4, 1, 1), {1, 4, 1}, {2, 2, 1}, {1, 2, 2}, {2, 1, 2}}) {
    auto recipe = small_recipe("llama", dp * shards);
    recipe.mesh = {.dp = dp, .tp = tp, .dp_shard = shards};
    recipe.model.kv_heads = 2;
    // A resumed run sets the learning rate in each step.
    recipe.lr_schedule.type = config::LrScheduleType::kConstant;
    recipe.lr_schedule.warmup_steps = 0;
    train::validate(recipe, recipe.mesh.world_size());
    recipes.push_back(recipe);
  }
  const auto step_of = [&](const std::string& name) {
    return std::filesystem::path(temp / name) /
           ("step-" + std::to_string(kTrained));
  };
  const auto save = [&](train::Trainer& trainer, const std::string& name) {
    checkpoint::save(
        temp / name, train::state_dicts(trainer.job()), {.step = kTrained});
  };
  for (const auto& from : recipes) {
    const auto saved = from.mesh.to_string();
    test::run_ranks(4, [&](test::RankContext& self) {
      train::Trainer trainer(from, self.world);
      for (int64_t step = 0; step < kTrained; ++step) {
        trainer.train_step(step);
      }
      save(trainer, saved);
      for (auto to : recipes) {
        to.seed = from.seed + 1; // Other initial weights.
        train::Trainer other(to, self.world);
        auto dicts = train::state_dicts(other.job());
        checkpoint::load(step_of(saved), dicts);
        train::adopt_state(other.job(), dicts, to);
        save(other, saved + " on " + to.mesh.to_string());
      }
    });
    for (const auto& to : recipes) {
      const auto name = saved + " on " + to.mesh.to_string();
      const auto comparison =
          checkpoint::compare(step_of(saved), step_of(name));
      EXPECT_GT(comparison.tensors, 0);
      for (const auto& difference : comparison.differences) {
        ADD_FAILURE() << name << ": " << difference.name << ": "
                      << difference.what;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    FullyShardedRecipe,
    ::testing::Values("llama", "gpt2", "moe"));

} // namespace
} // namespace weft::integration
