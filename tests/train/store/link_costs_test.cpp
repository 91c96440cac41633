#include "train/store/link_costs.h"

#include <cmath>
#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/run.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"
#include "train/store/earlier_choices.h"
#include "train/store/run_store.h"
#include "train/store/train_state.h"
#include "train/trainer.h"

namespace weft::train {
namespace {

config::Recipe recipe_in(
    const fixtures::TempFolder& folder,
    const std::string& more) {
  auto recipe = parse_recipe(
      fmt::format(
          "name: links\n"
          "mesh: {{dp: 2, tp: 2}}\n"
          "model: {{dim: 32, layers: 1, heads: 4, ffn_dim: 48}}\n"
          "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
          "train: {{steps: 2, global_batch_size: 8}}\n"
          "output_dir: {}\n"
          "{}",
          folder.write("text.txt", std::string(4000, 'w')),
          folder / "run",
          more),
      "test");
  validate(recipe, 4);
  return recipe;
}

// What a Trainer makes of a recipe's links, on each rank.
std::vector<config::LinksConfig> settled(const config::Recipe& recipe) {
  std::vector<config::LinksConfig> links;
  std::mutex mutex;
  test::run_ranks(4, [&](test::RankContext& self) {
    const Trainer trainer(recipe, self.world);
    const std::lock_guard lock(mutex);
    links.push_back(trainer.recipe().links);
  });
  return links;
}

TEST(LinkCosts, TheTableNeedsNoNumbers) {
  const fixtures::TempFolder folder;
  for (const auto& links : settled(recipe_in(folder, ""))) {
    EXPECT_EQ(links, config::LinksConfig());
  }
}

TEST(LinkCosts, MeasuredOnesAreTheSameOnAllRanks) {
  const fixtures::TempFolder folder;
  const auto all = settled(recipe_in(folder, "cost_model: measure\n"));
  for (const auto& links : all) {
    EXPECT_EQ(links, all[0]);
    for (const double number : {links.dp_bandwidth_gb_s, links.tp_latency_us}) {
      EXPECT_TRUE(std::isfinite(number) && number > 0) << number;
    }
  }
}

TEST(LinkCosts, GivenOnesAreNotMeasured) {
  const fixtures::TempFolder folder;
  const auto all = settled(recipe_in(
      folder,
      "cost_model: measure\n"
      "links: {tp_latency_us: 7.5, tp_bandwidth_gb_s: 3.25}\n"));
  for (const auto& links : all) {
    EXPECT_EQ(links.tp_latency_us, 7.5);
    EXPECT_EQ(links.tp_bandwidth_gb_s, 3.25);
    EXPECT_GT(links.dp_bandwidth_gb_s, 0);
  }
}

// The layout of the newest checkpoint after a run of four ranks.
RunLayout layout_after_run(const config::Recipe& recipe) {
  std::optional<RunLayout> layout;
  test::run_ranks(4, [&](test::RankContext& self) {
    run_training(recipe, self.world, /*fresh=*/false);
    const RunStore store(
        recipe, self.world, /*starts_over=*/false, base::Logger());
    if (self.rank == 0) {
      layout = store.earlier()->layout;
    }
  });
  return layout.value();
}

TEST(EarlierChoices, AResumedRunKeepsMeasuredLinkCosts) {
  const fixtures::TempFolder folder;
  const auto recipe = recipe_in(folder, "cost_model: measure\n");
  const auto layout = layout_after_run(recipe);
  const auto written =
      parse_recipe(
          fixtures::read_text(folder / "run/recipe.yaml"), "recipe.yaml")
          .links;
  EXPECT_GT(written.tp_bandwidth_gb_s, 0);
  EXPECT_EQ(with_earlier_choices(recipe, layout).links, written);
  auto other_mesh = recipe;
  other_mesh.mesh = {4, 1};
  EXPECT_EQ(
      with_earlier_choices(other_mesh, layout).links, config::LinksConfig());
  auto by_table = recipe;
  by_table.cost_model = config::CostModel::kDefault;
  EXPECT_EQ(with_earlier_choices(by_table, layout).links, written);
}

TEST(EarlierChoices, AResumedRunKeepsTheMatmulLibrary) {
  const fixtures::TempFolder folder;
  auto recipe = recipe_in(folder, "products: libtorch\n");
  const auto layout = layout_after_run(recipe);
  recipe.products = config::Products::kAuto;
  EXPECT_EQ(
      with_earlier_choices(recipe, layout).products,
      config::Products::kLibtorch);
  recipe.products = config::Products::kOneDnn;
  EXPECT_EQ(
      with_earlier_choices(recipe, layout).products, config::Products::kOneDnn);
}

TEST(LinkCosts, ALatencyAloneIsRefused) {
  const fixtures::TempFolder folder;
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>(
          [&] { recipe_in(folder, "links: {dp_latency_us: 4}\n"); }),
      "test:7:24: links.dp_latency_us: 4 is set, but links.dp_bandwidth_gb_s "
      "is not. Set both, or leave both to cost_model");
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>(
          [&] { recipe_in(folder, "links: {tp_bandwidth_gb_s: 4}\n"); }),
      "test:7:28: links.tp_bandwidth_gb_s: 4 is set, but links.tp_latency_us "
      "is not. Set both, or leave both to cost_model");
}

TEST(LinkCosts, AMeshDimOfOneRankHasNone) {
  const fixtures::TempFolder folder;
  auto recipe = recipe_in(folder, "cost_model: measure\n");
  recipe.mesh = {1, 4};
  for (const auto& links : settled(recipe)) {
    EXPECT_EQ(links.dp_bandwidth_gb_s, 0);
    EXPECT_GT(links.tp_bandwidth_gb_s, 0);
  }
  EXPECT_EQ(links_text(recipe), "");
  recipe.links = {.dp_latency_us = 4, .dp_bandwidth_gb_s = 2.5};
  EXPECT_EQ(links_text(recipe), "links: dp 4 us, 2.5 GB/s");
}

} // namespace
} // namespace weft::train
