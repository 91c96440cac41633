#include "config/recipe.h"

#include <sys/stat.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

using Overrides = std::vector<std::string>;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string recipe_refusal(
    const std::string& text,
    const Overrides& overrides = {},
    const std::string& source = "r.yaml") {
  return fixtures::message_of<mesh::UsageError>(
      [&] { parse_recipe(text, source, overrides); });
}

config::Recipe with(const Overrides& overrides) {
  return parse_recipe(fixtures::kMinRecipe, "r.yaml", overrides);
}

TEST(Recipe, NeedsOnlyModelAndData) {
  const config::Recipe recipe =
      parse_recipe(fixtures::kMinRecipe, "folder/tiny.yaml");
  EXPECT_EQ(recipe.name, "tiny");
  EXPECT_EQ(recipe.model.dim, 64);
  EXPECT_EQ(recipe.data.paths, (std::vector<std::string>{"text.txt"}));
  EXPECT_EQ(recipe.mesh.dp, -1);
  EXPECT_EQ(recipe.optimizer.lr, 1e-3);
}

TEST(Recipe, ReadsEveryKeyOfTheQuickstart) {
  const config::Recipe recipe =
      load_recipe(WEFT_SOURCE_DIR "/recipes/quickstart.yaml");
  EXPECT_EQ(recipe.name, "quickstart");
  EXPECT_EQ(recipe.mesh, (config::MeshConfig{.dp = 2, .tp = 2}));
  EXPECT_EQ(recipe.model.vocab_size, 256);
  EXPECT_TRUE(recipe.tp.sequence_parallel);
  EXPECT_EQ(recipe.ddp.bucket_cap_mb, 25.0);
  EXPECT_EQ(recipe.data.tokenizer, "byte");
  EXPECT_EQ(recipe.train.steps, 200);
  EXPECT_EQ(recipe.optimizer.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(recipe.lr_schedule.type, config::LrScheduleType::kCosine);
  EXPECT_EQ(recipe.eval.batches, 8);
  EXPECT_EQ(recipe.checkpoint.resume, config::Resume::kAuto);
}

struct BadRecipe {
  std::string text;
  std::string message;
};

TEST(Recipe, RefusesUnknownAndRepeatedKeysAtTheKey) {
  const BadRecipe cases[] = {
      {"name: x\nmodel:\n  dim: 64\n  heds: 4\n",
       "r.yaml:4:3: model.heds: unknown key; did you mean model.heads?"},
      {"mesh: {dp: 2, pt: 2}\n",
       "r.yaml:1:15: mesh.pt: unknown key; did you mean mesh.tp?"},
      {"modle: {dim: 64}\n",
       "r.yaml:1:1: modle: unknown key; did you mean model?"},
      {"train:\n  lr: 0.1\n",
       "r.yaml:2:3: train.lr: unknown key; did you mean optimizer.lr?"},
      {"\n\nheads: 4\n",
       "r.yaml:3:1: heads: unknown key; did you mean model.heads?"},
      {"optimizer: {eval: 3}\n",
       "r.yaml:1:13: optimizer.eval: unknown key; eval is a top-level key"},
      {"ddp: {zzzzzzzz: 3}\n",
       "r.yaml:1:7: ddp.zzzzzzzz: unknown key; ddp has bucket_cap_mb, "
       "bucket_mode, auto_bucketing, gradient_as_bucket_view, "
       "batched_grad_copy, static_graph, check_for_nan_in_grad, comm_hook, "
       "power_sgd_rank, power_sgd_start_iter, param_dtype, reduce_dtype"},
      {"model.dim: 64\n",
       "r.yaml:1:1: model.dim: a key must not contain dots. Write `model:`, "
       "and `dim:` indented below it"},
      {"model:\n  dim: 64\n  heads: 2\n  dim: 32\n",
       "r.yaml:4:3: model.dim: this key is repeated. It is already set in line "
       "2"},
      {"mesh: {dp: 1}\nseed: 1\nmesh: {tp: 1}\n",
       "r.yaml:3:1: mesh: this key is repeated. It is already set in line 1"},
      {"<<: {seed: 1}\n", "r.yaml:1:1: merge keys (<<) are not supported"},
      {"? [a]\n: 1\n", "r.yaml:1:3: a key is a word, found a list"},
      {": 1\n", "r.yaml:1:1: a key is a word, found nothing"},
      {"\"a\\nb\": 1\n",
       "r.yaml:1:1: a key is a word, found the string \"a\\nb\""}};
  for (const BadRecipe& bad : cases) {
    EXPECT_EQ(recipe_refusal(bad.text), bad.message) << bad.text;
  }
}

// Small gradients become 0 in it, and there is no gradient scaler.
TEST(Recipe, RefusesFloat16) {
  EXPECT_EQ(
      recipe_refusal("ddp: {param_dtype: float16}\n"),
      "r.yaml:1:20: ddp.param_dtype: expected one of none, bfloat16, found "
      "float16");
  EXPECT_EQ(
      recipe_refusal("ddp: {reduce_dtype: float16}\n"),
      "r.yaml:1:21: ddp.reduce_dtype: expected one of none, float32, bfloat16, "
      "found float16");
}

TEST(Recipe, RefusesWrongTypesAtTheValue) {
  const BadRecipe cases[] = {
      {"model:\n  dim: wide\n",
       "r.yaml:2:8: model.dim: expected an integer, found the string \"wide\""},
      {"train: {steps: 1e3}\n",
       "r.yaml:1:16: train.steps: expected an integer, found the number 1e3; "
       "write 1000"},
      {"tp:\n  loss_parallel: yes\n",
       "r.yaml:2:18: tp.loss_parallel: expected a bool (true, false), found "
       "the string \"yes\""},
      {"name: 5\n",
       "r.yaml:1:7: name: expected a string, found the number 5; put the value "
       "in quotes to make it a string"},
      {"data: {paths: a.txt}\n",
       "r.yaml:1:15: data.paths: expected a list of strings, found the string "
       "\"a.txt\"; write [\"a.txt\"]"},
      {"data:\n  paths:\n    - a\n    - 7\n",
       "r.yaml:4:7: data.paths: expected a string, found the number 7; put the "
       "value in quotes to make it a string"},
      {"optimizer: {betas: [0.9, 0.95, 0.99]}\n",
       "r.yaml:1:20: optimizer.betas: expected a list of two numbers, found a "
       "list of 3"},
      {"optimizer: {lr: .nan}\n",
       "r.yaml:1:17: optimizer.lr: expected a finite number, found the number "
       ".nan"},
      {"seed: 99999999999999999999\n",
       "r.yaml:1:7: seed: expected an integer that fits in 64 bits, found the "
       "number 99999999999999999999"},
      {"model: 7\n", "r.yaml:1:8: model: expected a map, found the number 7"},
      {"model: [1]\n", "r.yaml:1:8: model: expected a map, found a list"},
      {"model:\nseed: 1\n", "r.yaml:1:1: model: expected a map, found nothing"},
      {"train:\n  steps:\n  dtype: float32\n",
       "r.yaml:2:3: train.steps: expected an integer, found nothing"},
      {"seed: {a: 1}\n", "r.yaml:1:7: seed: expected an integer, found a map"}};
  for (const BadRecipe& bad : cases) {
    EXPECT_EQ(recipe_refusal(bad.text), bad.message) << bad.text;
  }
}

TEST(Recipe, RefusesImpossibleValuesAtTheValue) {
  const BadRecipe cases[] = {
      {"device: gpu\n",
       "r.yaml:1:9: device: expected one of cpu, cuda, found gpu"},
      {"model: {type: gpt}\n",
       "r.yaml:1:15: model.type: expected one of llama, gpt2, moe, vit, mlp, "
       "found gpt; did you mean gpt2?"},
      {"data: {type: word}\n",
       "r.yaml:1:14: data.type: expected one of text, tokens, digits, found "
       "word"},
      {"mesh: {dp: 0}\n",
       "r.yaml:1:12: mesh.dp: expected -1 or at least 1, at most 16777216, "
       "found 0"},
      {"model: {heads: -4}\n",
       "r.yaml:1:16: model.heads: expected at least 1, at most 16777216, found "
       "-4"},
      {"seed: -1\n", "r.yaml:1:7: seed: expected at least 0, found -1"},
      {"comm: {timeout_s: 0}\n",
       "r.yaml:1:19: comm.timeout_s: expected at least 1, at most 86400, found "
       "0"},
      {"comm: {timeout_s: 86401}\n",
       "r.yaml:1:19: comm.timeout_s: expected at least 1, at most 86400, found "
       "86401"},
      {"optimizer: {betas: [0.9, 1]}\n",
       "r.yaml:1:20: optimizer.betas: expected at least 0, below 1, found "
       "[0.9, 1.0]"},
      {"ddp: {bucket_cap_mb: 0}\n",
       "r.yaml:1:22: ddp.bucket_cap_mb: expected above 0, at most 1048576, "
       "found 0.0"},
      {"lr_schedule: {min_ratio: 1.5}\n",
       "r.yaml:1:26: lr_schedule.min_ratio: expected at least 0, at most 1, "
       "found 1.5"},
      {"data: {paths: []}\n",
       "r.yaml:1:15: data.paths: expected at least one, found an empty list"},
      {"data: {paths: [a, '']}\n",
       "r.yaml:1:15: data.paths: [1] is an empty string"},
      {"name: ../up\n",
       "r.yaml:1:7: name: \"../up\" cannot name a folder: 1 to 128 letters, "
       "digits, '.', '_' and '-', not beginning with '.'"},
      {"checkpoint: {resume: latest}\n",
       "r.yaml:1:22: checkpoint.resume: expected one of auto, never, found "
       "latest"}};
  for (const BadRecipe& bad : cases) {
    EXPECT_EQ(recipe_refusal(bad.text), bad.message) << bad.text;
  }
}

TEST(Recipe, RefusesWhatIsNoMap) {
  EXPECT_EQ(recipe_refusal(""), "r.yaml: the recipe is empty");
  EXPECT_EQ(recipe_refusal("# nothing\n"), "r.yaml: the recipe is empty");
  EXPECT_EQ(
      recipe_refusal("- a\n"),
      "r.yaml:1:1: expected a map of keys to values, found a list");
  EXPECT_EQ(
      recipe_refusal("\nhello\n"),
      "r.yaml:2:1: expected a map of keys to values, found the string "
      "\"hello\"");
  EXPECT_EQ(
      recipe_refusal("{seed: &a 1}"),
      "r.yaml:1:8: anchors are not supported: &a");
  EXPECT_THAT(recipe_refusal("{foo:"), StartsWith("r.yaml:1:5: not YAML: "));
  EXPECT_EQ(
      recipe_refusal("a: " + std::string(33, '[')),
      "r.yaml:1:36: nested more than 32 deep");
}

TEST(Recipe, NamesTheKeyThatIsMissing) {
  EXPECT_EQ(
      recipe_refusal("seed: 1\n"),
      "r.yaml: model.dim: is required but missing");
  EXPECT_EQ(
      recipe_refusal("model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128}\n"),
      "r.yaml: data.paths: is required but missing");
  EXPECT_THAT(
      recipe_refusal(std::string(fixtures::kMinRecipe), {}, "my recipe.yaml"),
      HasSubstr("my recipe.yaml: name: \"my recipe\" cannot name a folder"));
}

TEST(Recipe, OverridesComeAfterTheFileInOrder) {
  const config::Recipe recipe = with(
      {"train.steps=20",
       "mesh={dp: 3, tp: 1}",
       "data.paths=[a, 'b=c']",
       "optimizer.lr=2",
       "train.steps=30",
       "name=\"x-1\""});
  EXPECT_EQ(recipe.train.steps, 30);
  EXPECT_EQ(recipe.mesh.dp, 3);
  EXPECT_EQ(recipe.data.paths, (std::vector<std::string>{"a", "b=c"}));
  EXPECT_EQ(recipe.optimizer.lr, 2.0);
  EXPECT_EQ(recipe.name, "x-1");
  EXPECT_EQ(
      config::place_of(recipe, "train.steps"),
      "override train.steps=30: train.steps");
  EXPECT_EQ(config::place_of(recipe, "model.dim"), "r.yaml:1:14: model.dim");
  EXPECT_EQ(config::place_of(recipe, "seed"), "r.yaml: seed");
}

TEST(Recipe, AnOverrideCanGiveARequiredKey) {
  const Overrides overrides = {
      "model={dim: 64, layers: 2, heads: 4, ffn_dim: 128}",
      "data.paths=[text.txt]"};
  EXPECT_EQ(parse_recipe("name: r", "r.yaml", overrides), with({}));
}

TEST(Recipe, RefusesBadOverridesByName) {
  const BadRecipe cases[] = {
      {"train.stps=20",
       "override train.stps=20: train.stps: unknown key; did you mean "
       "train.steps?"},
      {"train.steps=many",
       "override train.steps=many: train.steps: expected an integer, found the "
       "string \"many\""},
      {"train.steps=",
       "override train.steps=: train.steps: expected an integer, found "
       "nothing"},
      {"train.steps", "override train.steps: expected key.path=value"},
      {"=5", "override =5: expected key.path=value"},
      {"train=5",
       "override train=5: train: expected a map, found the number 5"},
      {"mesh={dp: 1, dp: 2}",
       "override mesh={dp: 1, dp: 2}: mesh.dp: this key is repeated. It is "
       "already set in line 1"},
      {"mesh.dp=0",
       "override mesh.dp=0: mesh.dp: expected -1 or at least 1, at most "
       "16777216, found 0"}};
  for (const BadRecipe& bad : cases) {
    EXPECT_EQ(
        recipe_refusal(std::string(fixtures::kMinRecipe), {bad.text}),
        bad.message);
  }
  EXPECT_THAT(
      recipe_refusal(std::string(fixtures::kMinRecipe), {"data.paths=[a"}),
      StartsWith("override data.paths=[a: not YAML: "));
  EXPECT_THAT(
      recipe_refusal(std::string(fixtures::kMinRecipe), {"train.x\ny=1"}),
      StartsWith("override train.x y=1: "));
}

TEST(Recipe, WritingAndLoadingGivesTheSame) {
  const config::Recipe plain = with({});
  EXPECT_EQ(parse_recipe(config::to_yaml(plain), "other.yaml"), plain);

  config::Recipe recipe = with(
      {"name=a-b_c.1",
       "seed=9223372036854775807",
       "output_dir='out: #1'",
       "data.paths=['*.txt', \"it's\", '[x', 'true']",
       "optimizer.lr=0.1",
       "optimizer.eps=1e-30",
       "optimizer.betas=[0.3333333333333333, 0]",
       "model.tie_embeddings=true",
       "ddp.bucket_cap_mb=0.015625",
       "train.dtype=bfloat16",
       "lr_schedule.type=linear"});
  EXPECT_EQ(parse_recipe(config::to_yaml(recipe), "other.yaml"), recipe);
  validate(recipe, 4);
  const config::Recipe again =
      parse_recipe(config::to_yaml(recipe), "other.yaml");
  EXPECT_EQ(again, recipe);
  EXPECT_NE(again, plain);
  EXPECT_EQ(config::to_yaml(again), config::to_yaml(recipe));
  EXPECT_THAT(
      config::to_yaml(recipe),
      HasSubstr("mesh:\n  dp: 4\n  dp_shard: 1\n  tp: 1\n"));
}

TEST(Recipe, RefusesFilesThatAreNone) {
  const fixtures::TempFolder folder;
  const auto refusal_of = [](const std::string& path) {
    return fixtures::message_of<mesh::UsageError>([&] { load_recipe(path); });
  };
  const std::string missing = folder / "missing.yaml";
  EXPECT_EQ(refusal_of(missing), missing + ": No such file or directory");
  EXPECT_EQ(
      refusal_of(folder.path()), folder.path() + ": is a folder, not a recipe");
  const std::string fifo = folder / "fifo.yaml";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(refusal_of(fifo), fifo + ": is not a regular file");
  const std::string big =
      folder.write("big.yaml", std::string((1 << 20) + 1, '#'));
  EXPECT_EQ(
      refusal_of(big),
      big + ": got 1048577 bytes, expected at most 1048576 for a recipe");
  const std::string empty = folder.write("empty.yaml", "");
  EXPECT_EQ(refusal_of(empty), empty + ": the recipe is empty");
}

TEST(Recipe, LoadsAFile) {
  const fixtures::TempFolder folder;
  const std::string path =
      folder.write("run-7.yaml", fixtures::min_and("seed: 3\n"));
  const Overrides overrides = {"train.steps=5"};
  const config::Recipe recipe = load_recipe(path, overrides);
  EXPECT_EQ(recipe.name, "run-7");
  EXPECT_EQ(recipe.seed, 3);
  EXPECT_EQ(recipe.train.steps, 5);
  EXPECT_EQ(config::place_of(recipe, "seed"), path + ":3:7: seed");
}

} // namespace
} // namespace weft::train
