#include "train/setup/validate.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/schema.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Overrides = std::vector<std::string>;

config::Recipe resolved(int64_t world_size, const Overrides& overrides) {
  config::Recipe recipe =
      parse_recipe(fixtures::kMinRecipe, "r.yaml", overrides);
  validate(recipe, world_size);
  return recipe;
}

std::string validation_refusal(int64_t world_size, const Overrides& overrides) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { resolved(world_size, overrides); });
}

TEST(Validate, FillsInTheRestOfTheMesh) {
  EXPECT_EQ(
      resolved(8, {"mesh.tp=2"}).mesh, (config::MeshConfig{.dp = 4, .tp = 2}));
  EXPECT_EQ(
      resolved(8, {"mesh={dp: 4, tp: -1}"}).mesh,
      (config::MeshConfig{.dp = 4, .tp = 2}));
  EXPECT_EQ(resolved(1, {}).mesh, (config::MeshConfig{.dp = 1, .tp = 1}));
  EXPECT_EQ(
      validation_refusal(8, {"mesh.tp=3"}),
      "r.yaml: mesh.dp: -1 cannot be resolved: the world size 8 is not "
      "divisible by mesh.tp=3");
  EXPECT_EQ(
      validation_refusal(8, {"mesh.tp=-1"}),
      "override mesh.tp=-1: mesh.tp: mesh.dp and mesh.tp are both -1; set one "
      "of them");
}

TEST(Validate, TheMeshIsTheWorld) {
  EXPECT_EQ(
      validation_refusal(1, {"mesh={dp: 2, tp: 2}"}),
      "override mesh={dp: 2, tp: 2}: mesh.dp: the mesh dp=2 x tp=2 needs 4 "
      "ranks, but the world size is 1. Start 4 ranks (weftrun --nproc-per-node "
      "4), or set mesh.dp=-1");
  EXPECT_EQ(validation_refusal(4, {"mesh={dp: 2, tp: 2}"}), "");
}

TEST(Validate, FillsInWhatIsSharded) {
  EXPECT_EQ(
      resolved(4, {"mesh.dp_shard=-1"}).mesh,
      (config::MeshConfig{.dp = 1, .tp = 1, .dp_shard = 4}));
  EXPECT_EQ(
      resolved(4, {"mesh.dp_shard=4"}).mesh,
      (config::MeshConfig{.dp = 1, .tp = 1, .dp_shard = 4}));
  EXPECT_EQ(
      resolved(1, {"mesh.dp_shard=-1"}).mesh,
      (config::MeshConfig{.dp = 1, .tp = 1, .dp_shard = 1}));
  EXPECT_EQ(
      validation_refusal(8, {"mesh={dp_shard: 3}"}),
      "r.yaml: mesh.dp: -1 cannot be resolved: the world size 8 is not "
      "divisible by mesh.dp_shard=3 x mesh.tp=1");
  EXPECT_EQ(
      validation_refusal(2, {"mesh={dp: 1, dp_shard: 4}"}),
      "override mesh={dp: 1, dp_shard: 4}: mesh.dp: the mesh dp=1 x dp_shard=4 "
      "x tp=1 needs 4 ranks, but the world size is 2. Start 4 ranks (weftrun "
      "--nproc-per-node 4), or set mesh.dp=-1");
  EXPECT_EQ(
      validation_refusal(4, {"mesh={dp_shard: -1, tp: -1}"}),
      "override mesh={dp_shard: -1, tp: -1}: mesh.tp: mesh.dp_shard and "
      "mesh.tp are both -1; set one of them");
  EXPECT_THAT(
      validation_refusal(3, {"mesh.dp_shard=3", "train.global_batch_size=16"}),
      HasSubstr("16 is not divisible by mesh.dp_shard=3"));
}

TEST(Validate, WhatShardingDoesNotGoWithIsRefusedAtItsKey) {
  const auto refusal = [](const Overrides& more, int64_t world_size = 2) {
    Overrides overrides{"mesh.dp_shard=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return validation_refusal(world_size, overrides);
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({"mesh.dp=2"}, 4), "");
  EXPECT_EQ(
      resolved(8, {"mesh.dp_shard=2", "mesh.tp=2"}).mesh,
      (config::MeshConfig{.dp = 2, .tp = 2, .dp_shard = 2}));
  EXPECT_THAT(
      validation_refusal(
          6, {"mesh.dp_shard=3", "mesh.dp=2", "train.global_batch_size=16"}),
      HasSubstr("16 is not divisible by mesh.dp x mesh.dp_shard=6"));
  EXPECT_EQ(refusal({"mesh.tp=2"}, 4), "");
  EXPECT_EQ(refusal({"train.dtype=bfloat16"}), "");
  EXPECT_EQ(
      refusal({"fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=float32"}), "");
  EXPECT_EQ(refusal({"train.activation_checkpoint=full"}), "");
  EXPECT_EQ(
      refusal({"lora.rank=4", "lora.target_modules=[\"**.q_proj\"]"}), "");
  for (const std::string key :
       {"bucket_cap_mb=1",
        "comm_hook=bf16_compress",
        "param_dtype=bfloat16",
        "static_graph=true"}) {
    EXPECT_THAT(
        refusal({"ddp." + key}),
        AllOf(
            HasSubstr("ddp." + key.substr(0, key.find('='))),
            HasSubstr("has no effect: mesh.dp_shard is 2 and not 1")))
        << key;
  }
  EXPECT_EQ(refusal({"mesh.dp=2", "fsdp.comm_hook=bf16_compress"}, 4), "");
  EXPECT_THAT(
      refusal({"fsdp.comm_hook=bf16_compress"}),
      AllOf(HasSubstr("fsdp.comm_hook"), HasSubstr("mesh.dp is 1")));
  const Overrides four{"mesh.dp_shard=4"};
  const auto reshard_to = [&](const std::string& value, Overrides more = {}) {
    more.insert(more.end(), four.begin(), four.end());
    more.push_back("fsdp.reshard_to=" + value);
    return validation_refusal(4, more);
  };
  EXPECT_EQ(reshard_to("2"), "");
  EXPECT_THAT(
      reshard_to("3"),
      HasSubstr("fsdp.reshard_to: 3 must be a divisor of mesh.dp_shard=4"));
  EXPECT_THAT(reshard_to("4"), HasSubstr("4 must be a divisor"));
  EXPECT_THAT(reshard_to("1"), HasSubstr("expected 0 or at least 2"));
  EXPECT_THAT(
      reshard_to("2", {"fsdp.reshard_after_forward=never"}),
      HasSubstr("fsdp.reshard_to: 2 has no effect"));
  EXPECT_THAT(
      validation_refusal(2, {"fsdp.forward_prefetch=2"}),
      AllOf(
          HasSubstr("fsdp.forward_prefetch: 2 has no effect"),
          HasSubstr("mesh.dp_shard is 1")));
}

TEST(Validate, NamesTheLineOfTheFile) {
  config::Recipe recipe = parse_recipe(
      "mesh: {dp: 1, tp: 3}\n" + std::string(fixtures::kMinRecipe), "r.yaml");
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>([&] { validate(recipe, 3); }),
      "r.yaml:2:36: model.heads: 4 is not divisible by mesh.tp=3; with 4 heads "
      "and 4 kv heads mesh.tp can be 1, 2 or 4");
}

TEST(Validate, HeadsDivide) {
  EXPECT_EQ(resolved(1, {}).model.kv_heads, 4);
  EXPECT_EQ(
      validation_refusal(
          6,
          {"mesh.tp=6", "model.dim=96", "model.heads=12", "model.kv_heads=4"}),
      "override model.kv_heads=4: model.kv_heads: 4 neither divides mesh.tp=6 "
      "nor is a multiple of it; with 12 heads and 4 kv heads mesh.tp can be 1, "
      "2, 4 or 12");
  EXPECT_EQ(validation_refusal(4, {"mesh.tp=4", "model.kv_heads=2"}), "")
      << "a kv head on two ranks";
  EXPECT_EQ(
      validation_refusal(1, {"model.kv_heads=3"}),
      "override model.kv_heads=3: model.kv_heads: model.heads=4 is not "
      "divisible by 3");
  EXPECT_EQ(
      validation_refusal(1, {"model.dim=66"}),
      "override model.dim=66: model.dim: 66 is not divisible by model.heads=4");
  EXPECT_EQ(
      validation_refusal(1, {"model.dim=60"}),
      "override model.dim=60: model.dim: 60 / model.heads=4 is 15, but rotary "
      "embeddings need an even head size");
}

TEST(Validate, WhatMayBeUnevenOverTp) {
  EXPECT_EQ(
      validation_refusal(
          4,
          {"mesh.tp=4",
           "model.ffn_dim=129",
           "model.vocab_size=257",
           "data.sequence_length=17"}),
      "");
}

TEST(Validate, TheVocabularyHoldsAllBytes) {
  EXPECT_EQ(
      validation_refusal(1, {"model.vocab_size=255"}),
      "override model.vocab_size=255: model.vocab_size: 255 is smaller than "
      "the vocabulary of data.tokenizer=byte, 256");
}

TEST(Validate, BatchesDivide) {
  const config::Recipe whole = resolved(4, {"train.global_batch_size=12"});
  EXPECT_EQ(whole.train.micro_batch_size, 3);
  EXPECT_EQ(accumulation_steps(whole), 1);
  const config::Recipe parts =
      resolved(2, {"train.global_batch_size=12", "train.micro_batch_size=2"});
  EXPECT_EQ(accumulation_steps(parts), 3);
  EXPECT_EQ(
      validation_refusal(3, {"train.global_batch_size=16"}),
      "override train.global_batch_size=16: train.global_batch_size: 16 is not "
      "divisible by mesh.dp=3. The nearest valid value is 15 or 18");
  EXPECT_EQ(
      validation_refusal(2, {"train.micro_batch_size=3"}),
      "r.yaml: train.global_batch_size: 16 is not divisible by mesh.dp=2 x "
      "train.micro_batch_size=3 = 6. The nearest valid value is 12 or 18");
  EXPECT_EQ(
      validation_refusal(2, {"train.micro_batch_size=32"}),
      "r.yaml: train.global_batch_size: 16 is not divisible by mesh.dp=2 x "
      "train.micro_batch_size=32 = 64. The nearest valid value is 64");
}

TEST(Validate, AStepThatIsTracedIsOneOfTheRun) {
  EXPECT_EQ(
      validation_refusal(
          1, {"train.steps=5", "trace.steps=1", "trace.first_step=6"}),
      "override trace.first_step=6: trace.first_step: 6 is after the last "
      "step, train.steps=5");
  EXPECT_EQ(
      resolved(1, {"train.steps=5", "trace.steps=9", "trace.first_step=5"})
          .trace.steps,
      9);
  EXPECT_EQ(resolved(1, {"train.steps=1"}).trace.steps, 0) << "off";
}

// A value of `key` that is not its default, as YAML.
std::string other_value(const config::Key& key) {
  const auto type = config::type_name(key);
  const auto fallback = config::default_value(key);
  if (const auto choices = config::allowed_choices(key); !choices.empty()) {
    return std::string(
        choices.front() == fallback ? choices[1] : choices.front());
  }
  if (type == "bool") {
    return fallback == "true" ? "false" : "true";
  }
  if (type == "list of strings") {
    return key.path == "checkpoint.init_rename" ? "[\"a -> b\"]" : "[\"a.*\"]";
  }
  if (key.path == "model.rope_scaling.low_freq_factor") {
    return "2.0"; // The others have higher ones.
  }
  // The middle between the default and a limit is allowed.
  const auto number = std::stod(fallback);
  const bool is_limited = key.range.most < 1e9;
  const double other = is_limited && number == key.range.most
                           ? (number + key.range.least) / 2
                       : is_limited ? (number + key.range.most) / 2
                                    : number + 1;
  return type == "int" ? std::to_string(static_cast<int64_t>(other))
                       : fmt::format("{}", other);
}

// Each key that the table says to need another one: refused without that,
// with a message that names both, and accepted with it.
TEST(Validate, AValueWithoutEffectIsRefused) {
  const std::map<std::string_view, Overrides> enabling{
      {"mesh.dp_shard", {"mesh.dp_shard=2"}},
      {"mesh.dp", {"mesh.dp=2", "mesh.dp_shard=2"}},
      {"mesh.tp", {"mesh.tp=2"}},
      {"fsdp.reshard_after_forward", {"mesh.dp_shard=4"}},
      {"ddp.comm_hook", {"ddp.comm_hook=powersgd"}},
      {"train.on_non_finite", {"train.on_non_finite=skip"}},
      {"lora.rank", {"lora.rank=2", "lora.target_modules=[\"**.q_proj\"]"}},
      {"lr_schedule.type", {}},
      {"ema.decay", {"ema.decay=0.9"}},
      {"checkpoint.async", {}},
      {"checkpoint.init_from", {"checkpoint.init_from=x"}},
      {"trace.steps", {"trace.steps=2", "train.steps=100"}},
      {"model.rope_scaling.rope_type",
       {"model.rope_scaling.rope_type=llama3"}}};
  const std::map<std::string_view, Overrides> disabling{
      {"fsdp.reshard_after_forward",
       {"mesh.dp_shard=4", "fsdp.reshard_after_forward=never"}},
      {"mesh.dp", {"mesh.dp=1", "mesh.dp_shard=4"}},
      {"lr_schedule.type", {"lr_schedule.type=constant"}},
      {"checkpoint.async", {"checkpoint.async=false"}}};
  int checked = 0;
  for (const config::Key& key : config::schema()) {
    if (key.effect.key.empty()) {
      continue;
    }
    ++checked;
    SCOPED_TRACE(key.path);
    const auto value =
        key.path == "fsdp.reshard_to" ? std::string("2") : other_value(key);
    const auto assignment = fmt::format("{}={}", key.path, value);
    auto without = disabling.contains(key.effect.key)
                       ? disabling.at(key.effect.key)
                       : Overrides{};
    without.push_back(assignment);
    const int64_t ranks =
        without.size() > 1 && without[0].starts_with("mesh") ? 4 : 1;
    EXPECT_THAT(
        validation_refusal(ranks, without),
        AllOf(
            HasSubstr(fmt::format("{}: ", key.path)),
            HasSubstr(" has no effect: "),
            HasSubstr(std::string(key.effect.key) + " is ")));
    auto with = enabling.at(key.effect.key);
    with.push_back(assignment);
    EXPECT_EQ(
        validation_refusal(
            key.effect.key.starts_with("fsdp") || key.effect.key == "mesh.dp"
                ? 4
            : key.effect.key == "mesh.tp" ? 2
                                          : 1,
            with),
        "");
  }
  EXPECT_EQ(checked, 20);
}

TEST(Validate, AValueWithoutEffectIsNoOtherRun) {
  auto before = resolved(1, {});
  before.lora.alpha = 32;
  before.trace.first_step = 7;
  EXPECT_THAT(
      config::differing_keys(before, resolved(1, {})), ::testing::IsEmpty());
  auto adapted =
      resolved(1, {"lora.rank=2", "lora.target_modules=[\"**.q_proj\"]"});
  EXPECT_THAT(
      config::differing_keys(before, adapted),
      ::testing::IsSupersetOf(
          std::vector<std::string>{"lora.rank", "lora.alpha"}));
}

TEST(Validate, AnAverageIsThereToEvaluate) {
  EXPECT_EQ(
      validation_refusal(1, {"ema.eval=true"}),
      "override ema.eval=true: ema.eval: true has no effect: ema.decay is 0.0. "
      "Leave it out, or change that");
  EXPECT_EQ(validation_refusal(1, {"ema={decay: 0.9, eval: true}"}), "");
  EXPECT_THAT(validation_refusal(1, {"ema.decay=1"}), HasSubstr("ema.decay: "));
  EXPECT_THAT(
      validation_refusal(1, {"ema.decay=-0.1"}), HasSubstr("ema.decay: "));
}

TEST(Validate, OnlyWhatIsWrittenInTheBackgroundIsSlowed) {
  EXPECT_EQ(
      validation_refusal(
          1, {"checkpoint.max_mb_per_s=50", "checkpoint.async=false"}),
      "override checkpoint.max_mb_per_s=50: checkpoint.max_mb_per_s: 50.0 has "
      "no effect: checkpoint.async is false and not true. Leave it out, or "
      "change that");
  EXPECT_EQ(validation_refusal(1, {"checkpoint.max_mb_per_s=50"}), "");
  EXPECT_THAT(
      validation_refusal(1, {"checkpoint.max_mb_per_s=-1"}),
      HasSubstr("checkpoint.max_mb_per_s: "));
  EXPECT_THAT(
      validation_refusal(1, {"checkpoint.checksum=md5"}),
      HasSubstr("checkpoint.checksum: "));
  EXPECT_THAT(
      validation_refusal(1, {"checkpoint.fsync=3"}),
      HasSubstr("checkpoint.fsync: "));
}

TEST(Validate, RulesNeedSomethingToRead) {
  for (const auto* rule :
       {"checkpoint.init_include=[\"a.*\"]",
        "checkpoint.init_exclude=[\"a.*\"]",
        "checkpoint.init_rename=[\"a -> b\"]",
        "checkpoint.init_strict=missing_ok"}) {
    EXPECT_THAT(
        validation_refusal(1, {rule}),
        HasSubstr("has no effect: checkpoint.init_from is \"\". Leave it out"));
    EXPECT_EQ(validation_refusal(1, {rule, "checkpoint.init_from=x"}), "");
  }
  EXPECT_THAT(
      validation_refusal(
          1, {"checkpoint.init_from=x", "checkpoint.init_strict=lax"}),
      HasSubstr("checkpoint.init_strict: "));
}

TEST(Validate, RenameRulesAreRules) {
  const auto with = [](const std::string& rules) {
    return Overrides{
        "checkpoint.init_from=x", "checkpoint.init_rename=" + rules};
  };
  const auto rules = init_rename_rules(
      resolved(1, with("['^a\\. -> model.b.', 'c ->', 'd -> e -> f']")));
  ASSERT_EQ(rules.size(), 3);
  EXPECT_EQ(rules[0].pattern, "^a\\.");
  EXPECT_EQ(rules[0].replacement, "model.b.");
  EXPECT_EQ(rules[1].pattern, "c");
  EXPECT_EQ(rules[1].replacement, "");
  EXPECT_EQ(rules[2].replacement, "e -> f");
  EXPECT_THAT(
      validation_refusal(1, with("['a=b']")),
      HasSubstr("checkpoint.init_rename: \"a=b\" is not a rule"));
  EXPECT_THAT(
      validation_refusal(1, with("[' -> b']")), HasSubstr("is not a rule"));
  EXPECT_THAT(
      validation_refusal(1, with("['( -> b']")),
      AllOf(HasSubstr("checkpoint.init_rename: "), HasSubstr("\"(\"")));
}

TEST(Validate, NamesTheRunsFolder) {
  EXPECT_EQ(resolved(1, {}).output_dir, "outputs/r");
  EXPECT_EQ(resolved(1, {"output_dir=/tmp/x"}).output_dir, "/tmp/x");
}

TEST(Validate, ASecondTimeChangesNothing) {
  const config::Recipe once = resolved(4, {"mesh.tp=2"});
  config::Recipe twice = once;
  validate(twice, 4);
  EXPECT_EQ(twice, once);
}

} // namespace
} // namespace weft::train
