// A mixture of experts: against transformers' Mixtral, and trained alike on
// every mesh.

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/flight_recorder.h"
#include "models/moe.h"
#include "models/plans.h"
#include "tests/models/formula.h"
#include "tests/support/run_ranks.h"
#include "train/setup/adamw.h"

namespace weft::models {
namespace {

using test::RankContext;
using test::run_ranks;

at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& targets) {
  namespace F = torch::nn::functional;
  const dtensor::ImplicitReplication whole_targets;
  return F::cross_entropy(
      logits.flatten(0, 1),
      targets.reshape(-1),
      F::CrossEntropyFuncOptions().reduction(torch::kSum));
}

// ---- transformers -----------------------------------------------------------

MoeConfig oracle_config() {
  MoeConfig config;
  config.dim = 16;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn_dim = 12;
  config.vocab_size = 29;
  config.max_sequence_length = 8;
  config.num_experts = 4;
  config.num_experts_per_tok = 2;
  config.router_aux_loss_coef = 0.5;
  config.router_z_loss_coef = 0.1;
  return config;
}

void fill_by_formula(const Model& model) {
  const at::NoGradGuard no_grad;
  double position = 0;
  for (const auto& [name, parameter] : sorted_parameters(model)) {
    const auto values =
        wave(parameter.numel(), position++).view(parameter.sizes());
    parameter.copy_(
        name.ends_with("norm.weight") ? 1 + 0.1 * values : 0.4 * values);
  }
}

nlohmann::json stored_mixtral() {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/models/oracle/moe.json");
  return nlohmann::json::parse(file);
}

// transformers computes norms and routers in float, whatever the model's dtype.
constexpr double kFloatNorms = 2e-6;

TEST(Moe, GivesWhatMixtralDoes) {
  const auto stored = stored_mixtral();
  MoeForCausalLM model(oracle_config());
  model->to(at::kDouble);
  fill_by_formula(*model);
  const auto tokens = (at::arange(21) * 7919).remainder(29).view({3, 7});
  const auto targets = (at::arange(21) * 7919 + 3).remainder(29).view({3, 7});
  const auto logits = model->forward(tokens);
  const auto expected =
      at::tensor(stored.at("logits").get<std::vector<double>>(), at::kDouble);
  EXPECT_LT(
      (logits.view(-1) - expected).norm().item<double>(),
      kFloatNorms * expected.norm().item<double>());
  const auto loss = loss_sum(logits, targets);
  const auto auxiliary = model->auxiliary_loss();
  EXPECT_NEAR(loss.item<double>(), stored.at("loss"), 1e-4);
  EXPECT_NEAR(
      auxiliary.item<double>(),
      0.5 * stored.at("balance").get<double>() +
          0.1 * stored.at("z").get<double>(),
      1e-5);
  (loss + auxiliary).backward();
  const auto all = sorted_parameters(*model);
  ASSERT_EQ(all.size(), stored.at("gradients").size());
  for (const auto& [name, numbers] : stored.at("gradients").items()) {
    const auto grad = all.at(name).grad().flatten();
    const auto norm = numbers.at(0).get<double>();
    EXPECT_NEAR(grad.norm().item<double>(), norm, kFloatNorms * norm) << name;
    EXPECT_NEAR(
        grad.dot(wave(grad.numel(), 0.5)).item<double>(),
        numbers.at(1).get<double>(),
        2 * kFloatNorms * norm * std::sqrt(grad.numel()))
        << name;
  }
}

TEST(Moe, HasNoAuxiliaryLossOutsideTraining) {
  MoeForCausalLM model(oracle_config());
  const auto tokens = at::zeros({1, 3}, at::kLong);
  model->forward(tokens);
  EXPECT_TRUE(model->auxiliary_loss().defined());
  model->eval();
  model->forward(tokens);
  EXPECT_FALSE(model->auxiliary_loss().defined());
}

// ---- meshes -----------------------------------------------------------------

constexpr int64_t kMoeVocabulary = 37;
constexpr int64_t kMoeBatch = 8;
constexpr int64_t kMoeLength = 7;
constexpr int64_t kMoeSteps = 20;
constexpr int64_t kMoeAccumulation = 2;

// Heads for two and three ranks; experts and positions that 3 do not divide.
MoeConfig trained_config() {
  MoeConfig config;
  config.dim = 24;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 6;
  config.ffn_dim = 20;
  config.vocab_size = kMoeVocabulary;
  config.max_sequence_length = kMoeLength;
  config.num_experts = 4;
  config.num_experts_per_tok = 2;
  config.router_aux_loss_coef = 0.02;
  config.router_z_loss_coef = 0.001;
  return config;
}

struct TrainedMoe {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
  /// For each step, micro-batch and layer, the experts of the global batch's
  /// tokens, sorted for each token. [steps, layers, B, T, k]
  std::vector<at::Tensor> experts;
};

at::Tensor token_rows(int64_t step, int64_t shift) {
  const auto cells = at::arange(kMoeBatch * kMoeLength) + step * 131 + shift;
  return (cells * cells * 31 + cells * 7)
      .remainder(kMoeVocabulary)
      .view({kMoeBatch, kMoeLength});
}

// One rank of a mesh; the same on all.
class MoeTraining {
 public:
  MoeTraining(const mesh::DeviceMesh& mesh, bool sequence_parallel)
      : mesh_(mesh), model_(make_model(mesh, sequence_parallel)) {
    ddp::DistributedDataParallelOptions options;
    options.reduce_op = mesh::ReduceOp::kSum;
    ddp_ = std::make_unique<ddp::DistributedDataParallel<MoeForCausalLMImpl>>(
        model_, mesh["dp"], options);
    dtensor::materialize(*model_, /*seed=*/5);
    optimizer_ = std::make_unique<train::FusedAdamW>(
        model_->parameters(), torch::optim::AdamWOptions(3e-3));
  }

  TrainedMoe run() {
    TrainedMoe result;
    for (int64_t step = 0; step < kMoeSteps; ++step) {
      result.losses.push_back(run_step(step, result));
    }
    for (const auto& [name, parameter] : sorted_parameters(*model_)) {
      result.parameters[name] = dtensor::full_tensor(parameter.detach());
    }
    return result;
  }

 private:
  static std::shared_ptr<MoeForCausalLMImpl> make_model(
      const mesh::DeviceMesh& mesh,
      bool sequence_parallel) {
    std::shared_ptr<MoeForCausalLMImpl> model;
    {
      const dtensor::DeferredInit scope;
      model = std::make_shared<MoeForCausalLMImpl>(trained_config());
    }
    PlanOptions options;
    options.sequence_parallel = sequence_parallel;
    options.size = mesh.size("tp");
    tp::parallelize_module(
        *model, mesh["tp"], moe_plan(options, trained_config()));
    return model;
  }

  double run_step(int64_t step, TrainedMoe& result) {
    double sum = 0;
    for (int64_t a = 0; a + 1 < kMoeAccumulation; ++a) {
      const auto local_only = ddp_->no_sync();
      sum += run_micro_batch(step, a, result);
    }
    sum += run_micro_batch(step, kMoeAccumulation - 1, result);
    optimizer_->step();
    optimizer_->zero_grad();
    auto total = at::full({1}, sum, at::kDouble);
    mesh_.group("dp").all_reduce(total).wait();
    return total.item<double>();
  }

  double run_micro_batch(int64_t step, int64_t a, TrainedMoe& result) {
    const int64_t own = kMoeBatch / kMoeAccumulation / mesh_.size("dp");
    const int64_t first = (a * mesh_.size("dp") + mesh_.coordinate("dp")) * own;
    const auto logits = (*ddp_)(token_rows(step, 0).narrow(0, first, own));
    const auto sum =
        loss_sum(logits, token_rows(step, 3).narrow(0, first, own));
    const auto auxiliary = model_->auxiliary_loss();
    const auto loss = sum / static_cast<double>(kMoeBatch * kMoeLength) +
                      auxiliary / static_cast<double>(kMoeBatch);
    loss.backward();
    note_experts(first, result);
    return loss.item<double>();
  }

  // Where other replicas' rows are, zeros.
  void note_experts(int64_t first, TrainedMoe& result) {
    for (const auto& block : model_->moe_blocks()) {
      const auto index = dtensor::full_tensor(block->last_routing().index);
      auto all = at::zeros({kMoeBatch, kMoeLength, 2}, at::kLong);
      all.narrow(0, first, index.size(0)).copy_(std::get<0>(index.sort(-1)));
      mesh_.group("dp").all_reduce(all).wait();
      result.experts.push_back(all);
    }
  }

  mesh::DeviceMesh mesh_;
  std::shared_ptr<MoeForCausalLMImpl> model_;
  std::unique_ptr<ddp::DistributedDataParallel<MoeForCausalLMImpl>> ddp_;
  std::unique_ptr<train::FusedAdamW> optimizer_;
};

TrainedMoe train_moe(int64_t dp, int64_t tp, bool sequence_parallel) {
  TrainedMoe result;
  run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
    const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
    auto own = MoeTraining(mesh, sequence_parallel).run();
    if (self.rank == 0) {
      result = std::move(own);
    }
  });
  return result;
}

void expect_same_training(
    const TrainedMoe& actual,
    const TrainedMoe& expected) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-4)
        << "step " << step;
  }
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, wanted] : expected.parameters) {
    const auto error = (actual.parameters.at(name) - wanted).norm();
    EXPECT_LT(error.item<double>(), 1e-4 * wanted.norm().item<double>())
        << name;
  }
  // No token of any step went elsewhere, which the numbers rest on.
  ASSERT_EQ(actual.experts.size(), expected.experts.size());
  for (size_t i = 0; i < expected.experts.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.experts[i], expected.experts[i]))
        << "decision " << i;
  }
}

struct MoeMesh {
  int64_t dp;
  int64_t tp;
  bool sequence_parallel;
};

class MoeMeshes : public ::testing::TestWithParam<MoeMesh> {};

TEST_P(MoeMeshes, TrainAlike) {
  const auto [dp, tp, sequence_parallel] = GetParam();
  const auto expected = train_moe(1, 1, true);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  expect_same_training(train_moe(dp, tp, sequence_parallel), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    MoeMeshes,
    ::testing::Values(
        MoeMesh{2, 1, true},
        MoeMesh{1, 2, true},
        MoeMesh{2, 2, true},
        MoeMesh{1, 3, true},
        MoeMesh{1, 2, false},
        MoeMesh{2, 2, false},
        MoeMesh{1, 3, false}),
    [](const auto& info) {
      return fmt::format(
          "Dp{}Tp{}{}",
          info.param.dp,
          info.param.tp,
          info.param.sequence_parallel ? "" : "WholeSequences");
    });

} // namespace
} // namespace weft::models
