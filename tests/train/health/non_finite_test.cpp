// Steps that are not finite, on several ranks.

#include "train/health/non_finite.h"

#include <limits>
#include <map>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"
#include "train/store/train_state.h"
#include "train/trainer.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Kind = NonFiniteFinding::Kind;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

config::TrainConfig policy_config(
    const std::string& policy,
    int64_t streak = 10) {
  config::TrainConfig config;
  config.on_non_finite = config::choice_of<config::OnNonFinite>(policy).value();
  config.max_consecutive_non_finite = streak;
  return config;
}

TEST(NonFinitePolicy, StopNamesStepAndReason) {
  NonFinitePolicy policy(policy_config("stop"));
  EXPECT_THAT(
      fixtures::message_of<NonFiniteError>(
          [&] { policy.on_non_finite(7, {"the loss is nan on rank 2"}); }),
      StartsWith(
          "step 7: the loss is nan on rank 2. The weights were not updated. "));
}

TEST(NonFinitePolicy, SkipsUpToTheCapInARow) {
  NonFinitePolicy policy(policy_config("skip", 2));
  EXPECT_EQ(
      policy.on_non_finite(3, {"so"}),
      "step 3 skipped, 1 in a row of at most 2: so");
  EXPECT_EQ(
      policy.on_non_finite(4, {"so"}),
      "step 4 skipped, 2 in a row of at most 2: so");
  policy.on_finite();
  EXPECT_EQ(policy.streak(), 0);
  policy.on_non_finite(6, {"so"});
  policy.on_non_finite(7, {"so"});
  EXPECT_THAT(
      fixtures::message_of<NonFiniteError>(
          [&] { policy.on_non_finite(8, {"so"}); }),
      AllOf(
          StartsWith("step 8: so. The weights were not updated, as in the "
                     "previous 2 steps. The run ends because of "
                     "train.max_consecutive_non_finite=2. "),
          Not(HasSubstr("skipped"))));
}

TEST(NonFinitePolicy, AWeightEndsTheRunWithTheUpdateThatMadeItSo) {
  NonFinitePolicy policy(policy_config("skip"));
  const NonFiniteCause cause{
      .text = "the weight w holds nan on rank 0", .is_weight = true};
  EXPECT_THAT(
      fixtures::message_of<NonFiniteError>(
          [&] { policy.on_non_finite(1, cause); }),
      AllOf(
          StartsWith("step 1: the weight w holds nan on rank 0. It did before "
                     "the first update. "),
          HasSubstr("model.from"),
          Not(HasSubstr("optimizer.lr"))));
  policy.on_finite();
  EXPECT_THAT(
      fixtures::message_of<NonFiniteError>(
          [&] { policy.on_non_finite(2, cause); }),
      HasSubstr("An earlier update made it so. Lower optimizer.lr"));
}

TEST(NonFinitePolicy, AStreakGoesOnInTheNextProcess) {
  NonFinitePolicy policy(policy_config("skip", 2));
  policy.set_streak(2);
  EXPECT_THAT(
      fixtures::message_of<NonFiniteError>(
          [&] { policy.on_non_finite(3, {"so"}); }),
      HasSubstr("as in the previous 2 steps"));
}

TEST(NonFinitePolicy, TheCauseIsNamedNotItsConsequences) {
  const NonFiniteFinding nothing;
  const NonFiniteFinding late{Kind::kGradient, 5, "the gradient of a is nan"};
  const NonFiniteFinding early{Kind::kGradient, 2, "the gradient of b is inf"};
  const NonFiniteFinding loss{Kind::kLoss, 16, "the loss of samples is nan"};
  const NonFiniteFinding weight{Kind::kWeight, 9, "the weight c holds nan"};
  EXPECT_EQ(
      explain_non_finite({nothing, late, early, nothing}).text,
      "the gradient of b is inf on rank 2");
  EXPECT_EQ(
      explain_non_finite({early, loss, loss, late}).text,
      "the loss of samples is nan on ranks 1 and 2");
  EXPECT_EQ(
      explain_non_finite({loss, weight, weight, weight}).text,
      "the weight c holds nan on ranks 1 to 3");
  EXPECT_EQ(
      explain_non_finite({nothing, nothing}).text,
      "the loss or the norm of the gradients is not finite");
}

class NonFiniteTest : public ::testing::Test {
 protected:
  NonFiniteTest() {
    std::string text;
    for (int i = 0; i < 2000; ++i) {
      text += "line " + std::to_string(i * 7919 % 1000) + "\n";
    }
    folder_.write("text.txt", text);
  }

  config::Recipe recipe(
      int64_t dp,
      int64_t tp,
      const std::vector<std::string>& overrides = {}) const {
    auto recipe = parse_recipe(
        fmt::format(
            "mesh: {{dp: {}, tp: {}}}\n"
            "model: {{dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn_dim: "
            "24}}\n"
            "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
            "train: {{steps: 9, global_batch_size: 8}}\n"
            "optimizer: {{lr: 1.0e-2}}\n"
            "ddp: {{bucket_cap_mb: 0.004}}\n",
            dp,
            tp,
            folder_ / "text.txt"),
        "test",
        overrides);
    validate(recipe, dp * tp);
    return recipe;
  }

  fixtures::TempFolder folder_;
};

at::Tensor own_part(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

// `gradient` with another first element on this rank.
at::Tensor with_value(const at::Tensor& gradient, double value) {
  const at::NoGradGuard no_grad;
  const auto* impl = dtensor::dtensor_impl(gradient);
  auto local = own_part(gradient).clone();
  local.view(-1)[0].fill_(value);
  return impl ? dtensor::make_dtensor(
                    local, impl->spec(), impl->sizes(), impl->strides())
              : local;
}

// From now on `parameter` gets gradients with `value`, while that is there.
void inject(
    Trainer& trainer,
    const std::string& parameter,
    const std::shared_ptr<std::optional<double>>& value) {
  trainer.job().model->named_parameters()[parameter].register_hook(
      [value](const at::Tensor& gradient) {
        return *value ? with_value(gradient, **value) : gradient;
      });
}

using Whole = std::map<std::string, at::Tensor>;

Whole whole_state(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  Whole whole;
  for (const auto& [part, dict] : state_dicts(trainer.job())) {
    for (const auto& [name, tensor] : dict) {
      whole[part + "." + name] = dtensor::full_tensor(tensor).clone();
    }
  }
  return whole;
}

void expect_equal(const Whole& a, const Whole& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

const std::vector<std::string> kParameters{
    "lm_head.weight",    // cut
    "model.norm.weight", // a Partial sum, with sequence parallelism
    "model.embed_tokens.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.0.input_layernorm.weight"};

std::string shown(double value) {
  return std::isfinite(value) ? "reaches 1e+38, too large for a norm,"
                              : fmt::format("is {}", value);
}

// One element on one rank: all say the same, at that step, and name them.
TEST_F(NonFiniteTest, OneElementOnOneRankIsNamedOnAll) {
  std::mt19937 random(16);
  for (const auto& [dp, tp] :
       {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
    for (const double value : {kNan, kInfinite, 1e38}) {
      for (const bool is_sequence_parallel : {true, false}) {
        const auto guilty =
            static_cast<int64_t>(random() % static_cast<unsigned>(dp * tp));
        const auto& name = kParameters[random() % kParameters.size()];
        const auto step = static_cast<int64_t>(random() % 3);
        const auto one = recipe(
            dp,
            tp,
            {fmt::format("tp.sequence_parallel={}", is_sequence_parallel)});
        SCOPED_TRACE(fmt::format(
            "{}x{} {} {} on {} at {}", dp, tp, value, name, guilty, step));
        test::run_ranks(dp * tp, [&](test::RankContext& self) {
          Trainer trainer(one, self.world);
          const auto injected = std::make_shared<std::optional<double>>();
          inject(trainer, name, injected);
          for (int64_t i = 0; i < step; ++i) {
            trainer.train_step(i);
          }
          const auto before = whole_state(trainer);
          if (self.rank == guilty) {
            *injected = value;
          }
          EXPECT_THAT(
              fixtures::message_of<NonFiniteError>(
                  [&] { trainer.train_step(step); }),
              StartsWith(fmt::format(
                  "step {}: the gradient of {} {} on rank {}. The weights were "
                  "not updated. ",
                  step + 1,
                  name,
                  shown(value),
                  guilty)));
          expect_equal(whole_state(trainer), before);
        });
      }
    }
  }
}

TEST_F(NonFiniteTest, ASkippedStepChangesNothingAndTheNextGoesOn) {
  for (const auto& [dp, tp] : {std::pair{2, 2}, std::pair{1, 2}}) {
    test::run_ranks(dp * tp, [&, dp = dp, tp = tp](test::RankContext& self) {
      Trainer trainer(
          recipe(dp, tp, {"train.on_non_finite=skip", "ema.decay=0.9"}),
          self.world);
      const auto injected = std::make_shared<std::optional<double>>();
      inject(trainer, "lm_head.weight", injected);
      EXPECT_FALSE(trainer.train_step(0).skipped);
      const auto before = whole_state(trainer);
      if (self.rank == 1) {
        *injected = kNan;
      }
      const auto skipped = trainer.train_step(1);
      EXPECT_TRUE(skipped.skipped);
      EXPECT_TRUE(std::isfinite(skipped.loss));
      EXPECT_FALSE(std::isfinite(skipped.grad_norm));
      EXPECT_EQ(
          trainer.skip_note(),
          "step 2 skipped, 1 in a row of at most 10: the gradient of "
          "lm_head.weight is nan on rank 1");
      expect_equal(whole_state(trainer), before);
      // Data and schedule have gone on.
      const auto state = trainer.state_after(2);
      EXPECT_EQ(state.next_sample, 16);
      EXPECT_EQ(state.skipped_in_a_row, 1);
      injected->reset();
      EXPECT_FALSE(trainer.train_step(2).skipped);
      EXPECT_EQ(trainer.skip_note(), "");
      EXPECT_EQ(trainer.state_after(3).skipped_in_a_row, 0);
      const auto after = whole_state(trainer);
      const auto* steps = "optimizer.state.lm_head.weight.step";
      EXPECT_EQ(after.at(steps).item<double>(), 2) << "of three steps";
      EXPECT_FALSE(at::equal(
          after.at("model.lm_head.weight"), before.at("model.lm_head.weight")));
    });
  }
}

// A step is skipped as if its gradients had never been: a run that resumes from
// the state ends the same.
TEST_F(NonFiniteTest, AResumedRunIsTheSameAcrossSkippedSteps) {
  test::run_ranks(2, [&](test::RankContext& self) {
    const auto one = recipe(2, 1, {"train.on_non_finite=skip"});
    Trainer straight(one, self.world);
    Trainer first(one, self.world);
    Trainer second(one, self.world);
    const auto injected = std::make_shared<std::optional<double>>();
    for (auto* trainer : {&straight, &first, &second}) {
      inject(*trainer, "model.norm.weight", injected);
    }
    const auto step = [&](Trainer& trainer, int64_t i) {
      *injected = (i == 1 || i == 2 || i == 4) && self.rank == 0
                      ? std::optional(kInfinite)
                      : std::nullopt;
      return trainer.train_step(i).loss;
    };
    for (int64_t i = 0; i < 6; ++i) {
      const double loss = step(straight, i);
      if (i < 3) {
        EXPECT_EQ(step(first, i), loss);
        continue;
      }
      if (i == 3) {
        const at::NoGradGuard no_grad;
        auto from = state_dicts(first.job());
        auto to = state_dicts(second.job());
        for (auto& [part, dict] : to) {
          for (auto& [name, tensor] : dict) {
            own_part(tensor).copy_(own_part(from.at(part).at(name)));
          }
        }
        adopt_state(second.job(), to, one);
        second.start_from(
            parse_train_state(to_json(first.state_after(3), one), "the test"));
        EXPECT_EQ(second.state_after(3), first.state_after(3));
      }
      EXPECT_EQ(step(second, i), loss);
    }
    expect_equal(whole_state(second), whole_state(straight));
  });
}

// Found before what it makes of loss and gradients, and never saved.
TEST_F(NonFiniteTest, AWeightThatIsNotFiniteIsNamed) {
  test::run_ranks(4, [&](test::RankContext& self) {
    Trainer trainer(recipe(2, 2), self.world);
    trainer.train_step(0);
    trainer.check_weights(1);
    if (self.rank == 3) {
      const at::NoGradGuard no_grad;
      auto weight = trainer.job().model->named_parameters()["lm_head.weight"];
      dtensor::dtensor_impl(weight)->local().view(-1)[5].fill_(kInfinite);
    }
    EXPECT_THAT(
        fixtures::message_of<NonFiniteError>([&] { trainer.check_weights(1); }),
        StartsWith("step 1: the weight lm_head.weight holds inf on rank 3 "
                   "after the update. The step was not saved"));
    EXPECT_THAT(
        fixtures::message_of<NonFiniteError>([&] { trainer.train_step(1); }),
        StartsWith("step 2: the weight lm_head.weight holds inf on rank 3"));
  });
}

TEST_F(NonFiniteTest, SkipGoesWithWhatForgetsAStep) {
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        recipe(2, 1, {"ddp.comm_hook=powersgd", "train.on_non_finite=skip"});
      }),
      StartsWith("override train.on_non_finite=skip: train.on_non_finite: skip "
                 "cannot be combined with ddp.comm_hook=powersgd"));
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        recipe(
            2,
            1,
            {"ddp.check_for_nan_in_grad=true", "train.on_non_finite=skip"});
      }),
      HasSubstr("ddp.check_for_nan_in_grad ends it"));
}

} // namespace
} // namespace weft::train
