#include "train/report/rank_share.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Heads divide by 3, the vocabulary and the feed-forward width do not.
config::Recipe uneven_recipe() {
  auto recipe = parse_recipe(
      "mesh: {dp: 2, tp: 3}\n"
      "model: {dim: 24, layers: 2, heads: 3, ffn_dim: 50, vocab_size: 257}\n"
      "data: {paths: [text.txt], sequence_length: 8}\n",
      "test");
  validate(recipe, 6);
  return recipe;
}

TrainJob job_of_rank(int64_t rank, const config::Recipe& recipe) {
  const auto world = mesh::World::fake(rank, recipe.mesh.dp * recipe.mesh.tp);
  return make_train_job(
      recipe,
      mesh::DeviceMesh::create(
          world, {recipe.mesh.dp, recipe.mesh.tp}, {"dp", "tp"}));
}

TEST(RankShares, EqualWhatEveryRankReallyHolds) {
  const auto recipe = uneven_recipe();
  std::string first;
  for (int64_t rank = 0; rank < 6; ++rank) {
    const auto job = job_of_rank(rank, recipe);
    const auto shares = rank_shares(*job.model, job.mesh);
    int64_t elements = 0;
    int64_t bytes = 0;
    for (const auto& parameter : job.model->parameters()) {
      const auto local = dtensor::to_local(parameter);
      elements += local.numel();
      bytes += static_cast<int64_t>(local.nbytes());
    }
    EXPECT_EQ(shares.elements.at(rank), elements) << rank;
    EXPECT_EQ(shares.bytes.at(rank), bytes) << rank;
    first = rank == 0 ? to_json(shares) : first;
    EXPECT_EQ(to_json(shares), first) << "every rank knows of all: " << rank;
  }
}

TEST(RankShares, SayHowParametersLie) {
  const auto job = job_of_rank(0, uneven_recipe());
  const auto shares = rank_shares(*job.model, job.mesh);
  EXPECT_THAT(shares.mesh_dims, ElementsAre("dp", "tp"));
  EXPECT_THAT(shares.mesh_shape, ElementsAre(2, 3));
  EXPECT_THAT(shares.ranks, ElementsAre(0, 1, 2, 3, 4, 5));
  const auto& table = shares.parameters.at(0);
  EXPECT_EQ(table.name, "model.embed_tokens.weight");
  EXPECT_THAT(table.shape, ElementsAre(257, 24));
  EXPECT_EQ(table.dtype, "float32");
  EXPECT_THAT(table.placements, ElementsAre("R", "S(0)"));
  EXPECT_EQ(table.max_bytes, 86 * 24 * 4) << "257 rows: 86, 86, 85";
  EXPECT_EQ(table.min_bytes, 85 * 24 * 4);
  const auto sum = std::accumulate(
      shares.parameters.begin(),
      shares.parameters.end(),
      int64_t{0},
      [](int64_t total, const ParameterShare& p) {
        return total + std::accumulate(
                           p.shape.begin(),
                           p.shape.end(),
                           int64_t{1},
                           std::multiplies<>());
      });
  EXPECT_EQ(shares.total_elements, sum);
  EXPECT_EQ(shares.total_bytes, 4 * sum);
}

TEST(RankShares, PlainTensorsAreWholeOnEveryRank) {
  struct Plain : torch::nn::Module {
    Plain() {
      a = register_parameter("a", torch::zeros({3, 2}));
      register_parameter("b", a); // the same one again
      register_parameter("h", torch::zeros({5}, torch::kBFloat16));
    }
    at::Tensor a;
  };
  const auto mesh =
      mesh::DeviceMesh::create(mesh::World::fake(1, 2), {2}, {"dp"});
  const auto shares = rank_shares(Plain(), mesh);
  ASSERT_EQ(shares.parameters.size(), 2U);
  EXPECT_EQ(shares.parameters[1].dtype, "bfloat16");
  EXPECT_THAT(shares.parameters[0].placements, ElementsAre("R"));
  EXPECT_THAT(shares.elements, ElementsAre(11, 11));
  EXPECT_THAT(shares.bytes, ElementsAre(34, 34));
  EXPECT_EQ(shares.total_bytes, 34);
}

TEST(RankShares, ReadBackWhatWasWritten) {
  const fixtures::TempFolder folder;
  const auto job = job_of_rank(4, uneven_recipe());
  write_rank_shares(folder.path(), *job.model, job.mesh);
  const auto text = fixtures::read_text(folder / "layout.json");
  EXPECT_EQ(text, to_json(parse_rank_shares(text)) + "\n");
}

TEST(RankShares, RefuseWhatIsNoLayout) {
  const std::string good =
      R"({"dims":["dp"],"shape":[2],"ranks":[0,1],"elements":[1,1],)"
      R"("bytes":[4,4],"total_elements":2,"total_bytes":8,"parameters":[]})";
  EXPECT_EQ(parse_rank_shares(good).size(), 2);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return fixtures::message_of<mesh::UsageError>(
        [&] { parse_rank_shares(text); });
  };
  EXPECT_THAT(refused("[2]", "[3]"), HasSubstr("not one entry for every rank"));
  EXPECT_THAT(refused("[2]", "[0]"), HasSubstr("mesh.shape is impossible"));
  EXPECT_THAT(
      refused("[2]", "[4000000000,4000000000]"), HasSubstr("differ in length"));
  EXPECT_THAT(refused("[4,4]", "[4]"), HasSubstr("not one entry"));
  EXPECT_THAT(refused("[\"dp\"]", "7"), HasSubstr("type must be array"));
  EXPECT_THAT(refused("{\"dims\"", "{\"x\""), HasSubstr("'dims' not found"));
  EXPECT_THAT(refused("{", "<"), HasSubstr("parse error"));
}

TEST(RankShares, NameAFolderThatCannotBeWritten) {
  const auto job = job_of_rank(0, uneven_recipe());
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { write_rank_shares("/nowhere", *job.model, job.mesh); }),
      HasSubstr("cannot write \"/nowhere/layout.json\": No such file"));
}

} // namespace
} // namespace weft::train
