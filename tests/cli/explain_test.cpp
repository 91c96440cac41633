#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/explain/estimate_text.h"
#include "cli/explain/measured.h"
#include "cli/explain/step_estimate.h"
#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/setup/job_mesh.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"
#include "train/trainer.h"

namespace weft::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As the quickstart: grouped heads, two micro-batches, buckets that fill.
config::Recipe small_recipe(
    const std::string& data,
    const std::string& more = "") {
  auto recipe = train::parse_recipe(
      fmt::format(
          "name: small\n"
          "mesh: {{dp: 2, tp: 2}}\n"
          "model: {{dim: 32, layers: 3, heads: 4, kv_heads: 2, ffn_dim: 48}}\n"
          "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
          "ddp: {{bucket_cap_mb: 0.01}}\n"
          "train: {{steps: 3, global_batch_size: 16, micro_batch_size: 4}}\n"
          "{}",
          data,
          more),
      "test");
  train::validate(recipe, recipe.mesh.dp * recipe.mesh.tp);
  return recipe;
}

config::Recipe sharded_recipe(
    const std::string& data,
    const std::string& more = "",
    int64_t dp = 1,
    int64_t tp = 1) {
  auto recipe = train::parse_recipe(
      fmt::format(
          "name: small\n"
          "mesh: {{dp: {}, dp_shard: 3, tp: {}}}\n"
          "model: {{dim: 32, layers: 3, heads: 4, kv_heads: 2, ffn_dim: 48}}\n"
          "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
          "train: {{steps: 3, global_batch_size: 24, micro_batch_size: 4}}\n"
          "{}",
          dp,
          tp,
          data,
          more),
      "test");
  train::validate(recipe, 3 * dp * tp);
  return recipe;
}

// By (mesh dim, kind, what it is for): how many, and how many bytes.
using Counts = std::map<
    std::tuple<std::string, std::string, std::string>,
    std::pair<int64_t, int64_t>>;

Counts counts_of(const StepEstimate& estimate) {
  Counts counts;
  for (const auto& group : estimate.collectives) {
    auto& [count, bytes] = counts[{group.mesh_dim, group.op, group.name}];
    count += group.count;
    bytes += group.bytes;
  }
  return counts;
}

// What rank 0's flight recorders hold of the second step.
Counts counts_of_a_run(const config::Recipe& recipe) {
  Counts counts;
  std::mutex mutex;
  test::run_ranks(
      static_cast<int>(recipe.mesh.world_size()), [&](test::RankContext& self) {
        train::Trainer trainer(recipe, self.world);
        trainer.train_step(0);
        const auto& mesh = trainer.job().mesh;
        const auto batch = train::batch_mesh(mesh);
        std::map<std::string, mesh::Communicator> groups{
            {batch.mesh_dim_names().front(), batch.group(0)}};
        for (const auto& dim : mesh.mesh_dim_names()) {
          groups.insert({dim, mesh.group(dim)});
        }
        for (const auto& [dim, group] : groups) {
          group.flight_recorder().reset();
        }
        trainer.train_step(1);
        const std::lock_guard lock(mutex);
        for (const auto& [dim, group] : groups) {
          for (const auto& entry : group.flight_recorder().entries()) {
            if (self.rank == 0) {
              auto& [count, bytes] =
                  counts[{dim, entry.op, without_numbers(entry.name)}];
              ++count;
              bytes += entry.bytes;
            }
          }
        }
      });
  return counts;
}

template <class MakeRecipe>
void expect_as_run(const MakeRecipe& make_recipe, const std::string& more) {
  const fixtures::TempFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += "line " + std::to_string(i * 7919 % 1000) + "\n";
  }
  const auto recipe = make_recipe(folder.write("text.txt", text), more);
  const auto estimated = counts_of(estimate_step(recipe));
  EXPECT_FALSE(estimated.empty());
  EXPECT_EQ(estimated, counts_of_a_run(recipe)) << more;
}

TEST(StepEstimate, CountsMatchTheFlightRecorder) {
  expect_as_run(small_recipe, "");
}

TEST(StepEstimate, CountsMatchTheFlightRecorderForOtherRecipes) {
  expect_as_run(
      small_recipe, "tp: {sequence_parallel: false, loss_parallel: false}\n");
}

TEST(StepEstimate, CountsAreThoseOfTheLedgersOfAShardedRun) {
  for (const std::string fsdp :
       {"{}",
        "{accumulate: local}",
        "{param_dtype: bfloat16, reduce_dtype: float32}",
        "{reshard_after_forward: never}",
        "{reshard_after_forward: always, forward_prefetch: 0, "
        "backward_prefetch: none, reduce_in_flight: 0}"}) {
    for (const auto& [dp, tp] : {std::pair(1, 1), {2, 1}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{}, dp={} tp={}", fsdp, dp, tp));
      expect_as_run(
          [dp = dp, tp = tp](const std::string& data, const std::string& more) {
            return sharded_recipe(data, more, dp, tp);
          },
          "fsdp: " + fsdp + "\n");
    }
  }
}

// With two micro-batches: of 5 units, and what is left, which stays unsharded.
TEST(StepEstimate, AShardedRunGathersEachUnitTwice) {
  const auto estimate = estimate_step(sharded_recipe("none.txt"));
  int64_t gathers = 0;
  int64_t reductions = 0;
  for (const auto& group : estimate.collectives) {
    gathers += group.op == "all_gather" ? group.count : 0;
    reductions += group.op == "reduce_scatter" ? group.count : 0;
  }
  EXPECT_EQ(gathers, 2 * (4 * 2 + 1));
  EXPECT_EQ(reductions, 2 * 5);
}

TEST(StepEstimate, MemoryOfAShardedRunIsItsPartAndTheUnitsThatAreHere) {
  const auto frugal = estimate_step(sharded_recipe(
      "none.txt",
      "fsdp: {forward_prefetch: 0, backward_prefetch: none, "
      "reduce_in_flight: 0}\n"));
  const auto ahead = estimate_step(sharded_recipe("none.txt"));
  const auto& memory = frugal.memory;
  // Rows are padded.
  const int64_t part = frugal.parameter_count * 4 / 3;
  EXPECT_GE(memory.parameters, part - 64);
  EXPECT_LE(memory.parameters, part + 4 * 48 * 30);
  EXPECT_GE(memory.gradients, memory.parameters);
  EXPECT_LE(memory.gradients, memory.parameters + 4 * 48 * 30);
  EXPECT_GE(memory.optimizer, 2 * memory.parameters);
  const int64_t block = 4 * (32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32);
  const int64_t left = 4 * (256 * 32 + 32);
  const int64_t largest = std::max<int64_t>(block, 4 * 256 * 32);
  EXPECT_LE(memory.unsharded, left + 2 * largest);
  EXPECT_GT(memory.unsharded, left);
  EXPECT_GT(memory.reduction_buffers, block);
  EXPECT_GT(ahead.memory.total(), memory.total());
  EXPECT_GT(memory.peak_activations, 0);
}

TEST(StepEstimate, MemoryIsWhatThePlacementsSay) {
  const auto recipe = small_recipe("none.txt");
  const auto estimate = estimate_step(recipe);
  const auto& memory = estimate.memory;
  // Half of every matrix and of the embeddings, whole norms; floats.
  const int64_t norms = (2 * 3 + 1) * 32;
  EXPECT_EQ(
      memory.parameters, ((estimate.parameter_count - norms) / 2 + norms) * 4);
  EXPECT_EQ(memory.buffers, 2 * 16 * 8 * 4) << "rotary tables";
  EXPECT_GE(memory.gradients, memory.parameters);
  EXPECT_LE(memory.gradients, memory.parameters + 64) << "and a flag";
  EXPECT_GE(memory.optimizer, 2 * memory.parameters);
  EXPECT_LE(memory.optimizer, 2 * memory.parameters + 64);
  EXPECT_GT(memory.saved_activations, 0);
  EXPECT_GE(memory.peak_activations, memory.saved_activations);
}

TEST(StepEstimate, ActivationsGrowWithTheBatchAndAreCutBySequenceParallelism) {
  auto recipe = small_recipe("none.txt");
  const auto half = estimate_step(recipe).memory.saved_activations;
  recipe.train.micro_batch_size = 8;
  const auto whole = estimate_step(recipe).memory.saved_activations;
  EXPECT_NEAR(
      static_cast<double>(whole) / static_cast<double>(half), 2.0, 0.05);
  recipe.tp.sequence_parallel = false;
  EXPECT_GT(estimate_step(recipe).memory.saved_activations, whole);
}

TEST(StepEstimate, OneRankSendsNothing) {
  auto recipe = small_recipe("none.txt");
  recipe.mesh = {.dp = 1, .tp = 1};
  const auto estimate = estimate_step(recipe);
  EXPECT_EQ(estimate.collective_count(), 0);
  EXPECT_EQ(estimate.estimated_us(), 0);
  const EstimateContext context{.recipe = recipe};
  EXPECT_THAT(to_text(estimate, context), HasSubstr("0 collectives"));
}

TEST(StepEstimate, HostsThatAreFurtherApartTakeLonger) {
  auto recipe = small_recipe("none.txt");
  const auto near = estimate_step(recipe, {.ranks_per_host = 4});
  const auto far = estimate_step(recipe, {.ranks_per_host = 2});
  EXPECT_FALSE(near.links[0].between_hosts);
  EXPECT_TRUE(far.links[0].between_hosts);
  EXPECT_FALSE(far.links[1].between_hosts);
  EXPECT_GT(far.estimated_us(), near.estimated_us());
  EXPECT_EQ(far.bytes(), near.bytes());
}

TEST(CommunicationBudget, IsExceededByWhatIsMore) {
  auto recipe = small_recipe("none.txt");
  const auto estimate = estimate_step(recipe);
  EXPECT_THAT(over_budget(estimate, {}), IsEmpty());
  const auto count = estimate.collective_count();
  const double mb = static_cast<double>(estimate.bytes()) * 1e-6;
  EXPECT_THAT(
      over_budget(
          estimate,
          {.mb_per_step = mb,
           .collectives_per_step = count,
           .implicit_collectives = 0}),
      IsEmpty());
  const auto over = over_budget(
      estimate,
      {.mb_per_step = mb * 0.99,
       .collectives_per_step = count - 1,
       .implicit_collectives = -1});
  ASSERT_EQ(over.size(), 2U);
  EXPECT_THAT(over[0], HasSubstr("communication_budget.mb_per_step="));
  EXPECT_THAT(over[1], HasSubstr("collectives_per_step="));
}

TEST(EstimateText, IsOneLineOfJson) {
  const auto recipe = small_recipe("none.txt");
  const auto estimate = estimate_step(recipe);
  const EstimateContext context{
      .recipe = recipe, .over_budget = {"a"}, .notes = {"b\n"}};
  const auto text = to_json(estimate, context);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("world_size"), 4);
  EXPECT_EQ(json.at("collectives").size(), estimate.collectives.size());
  EXPECT_EQ(json.at("step").at("bytes"), estimate.bytes());
  EXPECT_EQ(json.at("memory_bytes").at("total"), estimate.memory.total());
  EXPECT_EQ(json.at("over_budget").at(0), "a");
}

// Every model runs on tensors without data.
TEST(StepEstimate, OfEveryRecipe) {
  for (const auto& entry :
       std::filesystem::directory_iterator(WEFT_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".yaml" ||
        entry.path().stem() == "llama_70b") {
      continue;
    }
    SCOPED_TRACE(entry.path().filename());
    auto recipe = train::load_recipe(entry.path().string());
    train::validate(recipe, 4);
    const auto estimate = estimate_step(recipe);
    EXPECT_GT(estimate.parameter_count, 0);
    EXPECT_GT(estimate.collective_count(), 0);
    EXPECT_GT(estimate.memory.saved_activations, 0);
  }
}

// Forward, over "tp", of all layers.
CollectiveGroup messages_in_layers(const StepEstimate& estimate) {
  CollectiveGroup all;
  for (const auto& group : estimate.collectives) {
    if (group.phase == "forward" && group.mesh_dim == "tp" &&
        group.name.starts_with("model.layers.*")) {
      all.count += group.count;
      all.bytes += group.bytes;
    }
  }
  return all;
}

TEST(Llama70B, IsExplainedForSixteenThousandRanks) {
  auto recipe = train::load_recipe(WEFT_SOURCE_DIR "/recipes/llama_70b.yaml");
  train::validate(recipe, 16384);
  recipe.tp.async_tp = config::AsyncTp::kOff;
  const auto estimate = estimate_step(recipe);
  EXPECT_NEAR(static_cast<double>(estimate.parameter_count), 70.55e9, 0.01e9);
  EXPECT_EQ(estimate.implicit_count(), 0);
  const auto whole = messages_in_layers(estimate);
  EXPECT_EQ(whole.count, 80 * 4) << "two gathers, two reduce-scatters a layer";
  // Never measured on GPUs, so there it has to be asked for.
  recipe.tp.async_tp = config::AsyncTp::kAuto;
  EXPECT_EQ(messages_in_layers(estimate_step(recipe)).count, whole.count);
  // They travel beside the products that need them: in parts.
  recipe.tp.async_tp = config::AsyncTp::kOn;
  const auto parts = messages_in_layers(estimate_step(recipe));
  EXPECT_GT(parts.count, whole.count);
  EXPECT_EQ(parts.bytes, whole.bytes);
}

TEST(MeasuredRun, NumbersOfLayersAndBucketsAreStars) {
  EXPECT_EQ(without_numbers("model.layers.17.mlp"), "model.layers.*.mlp");
  EXPECT_EQ(without_numbers("ddp bucket 3/12"), "ddp bucket *");
  EXPECT_EQ(
      without_numbers("ddp bucket 3/12 Partial gradients"),
      "ddp bucket * Partial gradients");
  EXPECT_EQ(without_numbers("layer2.conv1"), "layer2.conv1");
  EXPECT_EQ(without_numbers(""), "");
}

TEST(MeasuredRun, ReadsTracesAndMetrics) {
  const fixtures::TempFolder folder;
  const auto recipe = small_recipe(folder.write("text.txt", "text"));
  const auto refusal = [&](const config::Recipe& explained) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { read_measured(folder.path(), explained); });
  };
  EXPECT_THAT(refusal(recipe), HasSubstr("has no recipe.yaml"));
  folder.write("recipe.yaml", config::to_yaml(recipe));
  EXPECT_THAT(refusal(recipe), HasSubstr("neither trace.json nor metrics"));
  auto larger = recipe;
  larger.model.layers = 4;
  EXPECT_THAT(refusal(larger), HasSubstr("model.layers is 3 there and 4 here"));
  auto recomputed = recipe;
  recomputed.train.activation_checkpoint = config::ActivationCheckpoint::kFull;
  EXPECT_THAT(
      refusal(recomputed),
      HasSubstr("train.activation_checkpoint is none there and full here"));
  auto adapted = recipe;
  adapted.lora.rank = 4;
  EXPECT_THAT(refusal(adapted), HasSubstr("lora.rank is 0 there and 4 here"));
  for (const auto* broken :
       {"", "{", "[]", R"({"traceEvents":[{"pid":"x"}]})"}) {
    folder.write("trace.json", broken);
    EXPECT_THAT(refusal(recipe), HasSubstr("trace.json is not a trace"));
  }
  folder.write(
      "metrics.jsonl",
      "{\"comm_ms\": 3}\n{\"comm_ms\": 1}\nbroken\n{\"comm_ms\": 2}\n");
  folder.write(
      "trace.json",
      R"({"traceEvents":[)"
      R"({"ph":"X","pid":0,"name":"step 3","cat":"step","ts":0,"dur":9},)"
      R"({"ph":"X","pid":0,"name":"all_gather a.1.b","cat":"collective",)"
      R"("ts":0,"dur":4,"args":{"group":"tp/0","what":"a.1.b"}},)"
      R"({"ph":"X","pid":0,"name":"all_gather a.2.b","cat":"collective",)"
      R"("ts":0,"dur":8,"args":{"group":"tp/0","what":"a.2.b"}},)"
      R"({"ph":"X","pid":1,"name":"all_gather a.2.b","cat":"collective",)"
      R"("ts":0,"dur":80,"args":{"group":"tp/1","what":"a.2.b"}}]})");
  const auto run = read_measured(folder.path(), recipe);
  EXPECT_EQ(run.steps, 1);
  EXPECT_EQ(run.comm_ms, 2);
  const auto* call = run.find("all_gather", "tp", "a.*.b");
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->mean_us(), 6);
  EXPECT_EQ(call->min_us, 4);
  EXPECT_EQ(run.find("all_gather", "dp", "a.*.b"), nullptr);
}

} // namespace
} // namespace weft::cli
