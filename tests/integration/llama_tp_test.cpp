// A Llama under its tensor-parallel plan: what it sends, and the gradients of
// every parameter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "models/plans.h"
#include "tests/integration/traffic.h"
#include "tests/support/run_ranks.h"
#include "train/setup/loss.h"

namespace weft::integration {
namespace {

using test::RankContext;
using test::run_ranks;

constexpr int64_t kVocabulary = 37;

/// 6 kv heads of 12, so that two and three ranks can share them; sizes that
/// neither divides.
models::LlamaConfig config_of(bool tied) {
  models::LlamaConfig config;
  config.dim = 48;
  config.layers = 2;
  config.heads = 12;
  config.kv_heads = 6;
  config.ffn_dim = 53;
  config.vocab_size = kVocabulary;
  config.max_sequence_length = 8;
  config.tie_embeddings = tied;
  return config;
}

std::shared_ptr<models::LlamaForCausalLMImpl> parallel_llama(
    const mesh::DeviceMesh& tp,
    const models::PlanOptions& options,
    bool tied) {
  std::shared_ptr<models::LlamaForCausalLMImpl> model;
  {
    const dtensor::DeferredInit scope;
    model = std::make_shared<models::LlamaForCausalLMImpl>(config_of(tied));
  }
  tp::parallelize_module(
      *model, tp, models::llama_plan(options, config_of(tied)));
  dtensor::materialize(*model, /*seed=*/11);
  model->to(at::kDouble);
  return model;
}

/// Collective: all ranks of the model's mesh.
std::shared_ptr<models::LlamaForCausalLMImpl> plain_copy(
    const models::LlamaForCausalLMImpl& model,
    bool tied) {
  auto plain = std::make_shared<models::LlamaForCausalLMImpl>(config_of(tied));
  plain->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    plain->named_parameters()[item.key()].copy_(
        dtensor::full_tensor(item.value()));
  }
  return plain;
}

at::Tensor tokens_of(int64_t rows, int64_t length, int64_t phase) {
  return (at::arange(rows * length) * 7919 + phase)
      .remainder(kVocabulary)
      .view({rows, length});
}

/// Collectives of a group by kind.
struct Traffic {
  int64_t gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  bool operator==(const Traffic&) const = default;
};

void PrintTo(const Traffic& traffic, std::ostream* out) {
  *out << traffic.gathers << " gathers, " << traffic.reduce_scatters
       << " reduce_scatters, " << traffic.all_reduces << " all_reduces";
}

/// Returns the traffic of the entries with this prefix.
Traffic traffic_of(
    const std::vector<mesh::FlightRecorderEntry>& entries,
    const std::string& prefix = {}) {
  Traffic traffic;
  for (const auto& entry : entries) {
    if (!entry.name.starts_with(prefix)) {
      continue;
    }
    if (entry.op.starts_with("all_gather")) {
      ++traffic.gathers;
    } else if (entry.op.starts_with("reduce_scatter")) {
      ++traffic.reduce_scatters;
    } else {
      EXPECT_TRUE(entry.op.starts_with("all_reduce")) << entry.op;
      ++traffic.all_reduces;
    }
  }
  return traffic;
}

struct Expected {
  Traffic layer;
  Traffic all;
};

struct LlamaTrafficCase {
  bool sequence_parallel;
  Expected forward;
  Expected backward;
};

class LlamaTraffic : public ::testing::TestWithParam<int> {
 protected:
  static void
  check(const LlamaTrafficCase& expected, bool tied, int64_t length) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto mesh = self.mesh({GetParam()}, {"tp"});
      models::PlanOptions options;
      options.sequence_parallel = expected.sequence_parallel;
      const auto model = parallel_llama(mesh, options, tied);
      take_entries(mesh);
      const auto loss = train::token_loss(
          model->forward(tokens_of(2, length, 0)),
          tokens_of(2, length, 3),
          2 * length);
      expect_traffic(take_entries(mesh), expected.forward);
      loss.backward();
      expect_traffic(take_entries(mesh), expected.backward);
    });
  }

  static void expect_traffic(
      const std::vector<mesh::FlightRecorderEntry>& entries,
      const Expected& expected) {
    for (const auto* layer : {"model.layers.0.", "model.layers.1."}) {
      EXPECT_EQ(traffic_of(entries, layer), expected.layer) << layer;
    }
    EXPECT_EQ(traffic_of(entries), expected.all);
    for (const auto& entry : entries) {
      EXPECT_NE(entry.name, "");
    }
  }
};

// Forward: attention and MLP gather and scatter once each; the embedding
// scatters, the head gathers, the loss gathers three numbers a token. Backward
// mirrors it but for the loss, and sums all norms' gradients at once.
TEST_P(LlamaTraffic, WithSequenceParallelism) {
  const LlamaTrafficCase expected{
      .sequence_parallel = true,
      .forward =
          {.layer = {.gathers = 2, .reduce_scatters = 2},
           .all = {.gathers = 4 + 2, .reduce_scatters = 4 + 1}},
      .backward = {
          .layer = {.gathers = 2, .reduce_scatters = 2},
          .all = {
              .gathers = 4 + 1, .reduce_scatters = 4 + 1, .all_reduces = 1}}};
  for (const bool tied : {false, true}) {
    for (const int64_t length : {5, 6}) {
      check(expected, tied, length);
    }
  }
}

TEST_P(LlamaTraffic, WithoutSequenceParallelism) {
  const LlamaTrafficCase expected{
      .sequence_parallel = false,
      .forward =
          {.layer = {.all_reduces = 2},
           .all = {.gathers = 1, .all_reduces = 4 + 1}},
      .backward = {.layer = {.all_reduces = 2}, .all = {.all_reduces = 4 + 1}}};
  for (const bool tied : {false, true}) {
    check(expected, tied, 5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    LlamaTraffic,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

struct GradientCase {
  int64_t dp;
  int64_t tp;
  bool with_ddp;
};

void expect_same_gradients(
    const models::LlamaForCausalLMImpl& model,
    const models::LlamaForCausalLMImpl& alone) {
  const at::NoGradGuard no_grad;
  const auto expected = alone.named_parameters();
  for (const auto& item : model.named_parameters()) {
    SCOPED_TRACE(item.key());
    const auto& grad = item.value().grad();
    ASSERT_TRUE(grad.defined());
    EXPECT_EQ(dtensor::spec_of(grad), dtensor::spec_of(item.value()));
    const auto& wanted = expected[item.key()].grad();
    const auto error = (dtensor::full_tensor(grad) - wanted).norm();
    EXPECT_GT(wanted.norm().item<double>(), 1e-6);
    EXPECT_LT(error.item<double>(), 1e-10 * wanted.norm().item<double>());
  }
}

/// One rank of a mesh against the whole batch on one rank.
void check_gradients(
    const mesh::DeviceMesh& mesh,
    const models::PlanOptions& options,
    bool tied,
    bool with_ddp) {
  constexpr int64_t kLength = 7;
  const int64_t replicas = with_ddp ? mesh.size("dp") : 1;
  const int64_t tokens = 2 * replicas * kLength;
  const auto model = parallel_llama(mesh["tp"], options, tied);
  const auto alone = plain_copy(*model, tied);
  const auto inputs = tokens_of(2 * replicas, kLength, 0);
  const auto targets = tokens_of(2 * replicas, kLength, 3);
  const auto own = [&](const at::Tensor& whole) {
    return whole.narrow(0, with_ddp ? 2 * mesh.coordinate("dp") : 0, 2);
  };
  at::Tensor loss;
  if (with_ddp) {
    ddp::DistributedDataParallelOptions ddp_options;
    ddp_options.reduce_op = mesh::ReduceOp::kSum;
    ddp::DistributedDataParallel<models::LlamaForCausalLMImpl> ddp(
        model, mesh["dp"], ddp_options);
    loss = train::token_loss(ddp(own(inputs)), own(targets), tokens);
    loss.backward();
  } else {
    loss = train::token_loss(model->forward(own(inputs)), own(targets), tokens);
    loss.backward();
  }
  const auto expected =
      train::token_loss(alone->forward(inputs), targets, tokens);
  expected.backward();
  if (replicas == 1) {
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
  }
  expect_same_gradients(*model, *alone);
}

class LlamaGradients : public ::testing::TestWithParam<GradientCase> {};

TEST_P(LlamaGradients, AreThoseOfOneRank) {
  const auto [dp, tp, with_ddp] = GetParam();
  run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
    const auto mesh = self.mesh({GetParam().dp, GetParam().tp}, {"dp", "tp"});
    for (const bool sequence : {false, true}) {
      for (const bool loss : {false, true}) {
        for (const bool tied : {false, true}) {
          SCOPED_TRACE(fmt::format(
              "sequence {}, loss {}, tied {}", sequence, loss, tied));
          check_gradients(mesh, {sequence, loss}, tied, GetParam().with_ddp);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    LlamaGradients,
    ::testing::Values(
        GradientCase{1, 2, false},
        GradientCase{1, 3, false},
        GradientCase{2, 2, false},
        GradientCase{2, 1, true},
        GradientCase{2, 2, true}),
    [](const auto& info) {
      return fmt::format(
          "Dp{}Tp{}{}",
          info.param.dp,
          info.param.tp,
          info.param.with_ddp ? "" : "WithoutDdp");
    });

} // namespace
} // namespace weft::integration
