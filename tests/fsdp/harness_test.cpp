// The models of tests/ddp/harness, fully sharded, against one rank.
// Source: torch/testing/_internal/common_fsdp.py.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "tests/ddp/harness/nested_wrapped_module.h"
#include "tests/ddp/harness/training.h"
#include "tests/ddp/harness/transformer.h"
#include "tests/support/run_ranks.h"

namespace weft::fsdp {
namespace {

using weft::test::HarnessDelays;
using weft::test::HarnessKind;
using weft::test::HarnessModel;
using weft::test::HarnessTrace;
using weft::test::RandomSleeper;
using weft::test::RankContext;

constexpr int64_t kHarnessSteps = 3;
/// Sums come in another order.
constexpr double kHarnessTolerance = 1e-10;

struct HarnessLayout {
  int64_t dp;
  int64_t dp_shard;
  int64_t tp;
};

struct HarnessCase {
  HarnessKind kind;
  HarnessLayout layout;
};

struct HarnessVariant {
  BackwardPrefetch prefetch;
  bool reshards;
  bool is_late;
};

std::vector<HarnessVariant> harness_variants() {
  std::vector<HarnessVariant> all;
  for (const auto prefetch :
       {BackwardPrefetch::kPre,
        BackwardPrefetch::kPost,
        BackwardPrefetch::kNone}) {
    for (const bool reshards : {true, false}) {
      for (const bool is_late : {false, true}) {
        all.push_back({prefetch, reshards, is_late});
      }
    }
  }
  return all;
}

/// The modules that are units, inner ones first, by kind of model.
std::vector<std::vector<torch::nn::Module*>> units_of(
    HarnessKind kind,
    HarnessModel& model) {
  std::vector<std::vector<torch::nn::Module*>> units;
  if (auto* transformer =
          dynamic_cast<test::TransformerWithSharedParams*>(&model)) {
    units.push_back(
        {transformer->embed_tokens.get(), transformer->output_proj.get()});
    for (const auto& item : transformer->named_modules()) {
      const auto& each = *item.value();
      if (each.as<torch::nn::TransformerEncoderLayerImpl>() ||
          each.as<torch::nn::TransformerDecoderLayerImpl>()) {
        units.push_back({item.value().get()});
      }
    }
    return units;
  }
  const bool has_all = kind != HarnessKind::kNested;
  for (const auto& item : model.named_modules()) {
    const auto& name = item.key();
    if (item.value()->as<torch::nn::LinearImpl>() &&
        (has_all || name == "block.inner" || name == "third")) {
      units.push_back({item.value().get()});
    }
  }
  if (kind == HarnessKind::kNested) {
    units.push_back({model.named_modules()["block"].get()});
  }
  return units;
}

struct ShardedHarness {
  ShardedHarness(
      HarnessKind kind,
      const mesh::DeviceMesh& mesh,
      const HarnessVariant& variant) {
    const auto ranks = mesh.slice({"dp", "dp_shard"});
    const auto channel = kind == HarnessKind::kTransformerWithSyncBatchNorm
                             ? ddp::make_sync_batch_norm_group(ranks.flatten())
                             : nullptr;
    const auto construct = [&] {
      auto made = test::construct_harness(kind, ranks.size(), nullptr, channel);
      made->to(at::kDouble);
      return made;
    };
    const auto plain = construct();
    test::fill_harness(*plain);
    {
      const dtensor::DeferredInit scope;
      module = construct();
    }
    if (mesh.size("tp") > 1) {
      module->tp = mesh["tp"];
      for (const auto& [name, parameter] : test::harness_parameters(*module)) {
        dtensor::set_placements(
            parameter, mesh["tp"], {module->placement_of(name)});
      }
      for (const auto& buffer : module->buffers()) {
        dtensor::set_placements(buffer, mesh["tp"], {dtensor::Replicate()});
      }
    }
    const FullyShardOptions options{.reshard_after_forward = variant.reshards};
    for (const auto& unit : units_of(kind, *module)) {
      fully_shard(unit, ranks, options);
    }
    model = std::make_unique<FullyShardedDataParallel<HarnessModel>>(
        module,
        ranks,
        options,
        ScheduleOptions{.backward_prefetch = variant.prefetch});
    dtensor::materialize(*module, 1);
    adopt_values(*plain);
  }

  void adopt_values(const HarnessModel& plain) const {
    const at::NoGradGuard no_grad;
    const FullParameters all(*model, /*write_back=*/true);
    const auto values = test::harness_parameters(plain);
    const auto parameters = test::harness_parameters(*module);
    for (size_t i = 0; i < values.size(); ++i) {
      auto parameter = parameters[i].second;
      const auto value = values[i].second.detach();
      parameter.copy_(
          module->tp ? dtensor::distribute_tensor(
                           value,
                           *module->tp,
                           {module->placement_of(values[i].first)},
                           std::nullopt)
                     : value);
    }
    for (const auto& buffer : plain.named_buffers()) {
      auto own = module->named_buffers()[buffer.key()];
      own.copy_(
          module->tp ? dtensor::distribute_tensor(
                           buffer.value(),
                           *module->tp,
                           {dtensor::Replicate()},
                           std::nullopt)
                     : buffer.value());
    }
  }

  std::shared_ptr<HarnessModel> module;
  std::unique_ptr<FullyShardedDataParallel<HarnessModel>> model;
};

HarnessTrace train_sharded(
    HarnessKind kind,
    const mesh::DeviceMesh& mesh,
    const HarnessVariant& variant) {
  const ShardedHarness harness(kind, mesh, variant);
  auto& module = *harness.module;
  // Late after the loss, and before gradients are accumulated and reduced.
  RandomSleeper sleeper(
      {.seed = static_cast<uint64_t>(mesh.rank()), .max_ms = 0.3});
  const auto sleep = [&] {
    if (variant.is_late) {
      sleeper.sleep();
    }
  };
  for (const auto& parameter : module.parameters()) {
    parameter.register_hook([&](const at::Tensor& /*gradient*/) { sleep(); });
  }
  const auto ranks = mesh.slice({"dp", "dp_shard"}).flatten();
  torch::optim::SGD optimizer(
      test::harness_tensors(module), test::harness_sgd());
  std::vector<double> losses;
  for (int64_t step = 0; step < kHarnessSteps; ++step) {
    optimizer.zero_grad();
    const auto inputs = module.get_input(ranks.coordinate(int64_t{0}), step);
    const auto loss = module.get_loss(inputs, (*harness.model)(inputs));
    sleep();
    module.run_backward(loss);
    optimizer.step();
    const auto mean = loss.detach().clone();
    ranks.group(int64_t{0}).all_reduce(mean, mesh::ReduceOp::kAvg).wait();
    losses.push_back(mean.item<double>());
  }
  return test::trace_of_harness(module, std::move(losses));
}

class FsdpHarness : public ::testing::TestWithParam<HarnessCase> {};

TEST_P(FsdpHarness, EqualsOneRankWithEachScheduleAndDelays) {
  const auto& [kind, layout] = GetParam();
  const auto& [dp, dp_shard, tp] = layout;
  const auto expected =
      test::train_harness_twin(kind, dp * dp_shard, kHarnessSteps);
  // It trains: otherwise everything is equal.
  ASSERT_LT(expected.losses.back(), 0.999 * expected.losses.front());
  test::run_ranks(static_cast<int>(dp * dp_shard * tp), [&](RankContext& self) {
    const auto mesh = self.mesh(
        {GetParam().layout.dp,
         GetParam().layout.dp_shard,
         GetParam().layout.tp},
        {"dp", "dp_shard", "tp"});
    for (const auto& variant : harness_variants()) {
      SCOPED_TRACE(c10::str(
          "prefetch ",
          static_cast<int>(variant.prefetch),
          variant.reshards ? ", reshards" : "",
          variant.is_late ? ", late" : ""));
      const auto actual = train_sharded(GetParam().kind, mesh, variant);
      for (size_t i = 0; i < actual.losses.size(); ++i) {
        EXPECT_NEAR(actual.losses[i], expected.losses[i], kHarnessTolerance)
            << "step " << i;
      }
      ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
      for (const auto& [name, tensor] : actual.parameters) {
        EXPECT_LE(
            (tensor - expected.parameters.at(name)).abs().max().item<double>(),
            kHarnessTolerance)
            << name;
      }
    }
  });
}

std::vector<HarnessCase> harness_cases() {
  std::vector<HarnessCase> cases;
  for (const auto layout :
       {HarnessLayout{1, 2, 1}, {1, 3, 1}, {2, 2, 1}, {1, 2, 2}}) {
    for (const auto kind :
         {HarnessKind::kTransformer,
          HarnessKind::kTransformerWithBatchNorm,
          HarnessKind::kTransformerWithSyncBatchNorm,
          HarnessKind::kNested,
          HarnessKind::kAlwaysNested,
          HarnessKind::kMixtureOfExperts}) {
      const bool has_batch_norm =
          kind == HarnessKind::kTransformerWithBatchNorm ||
          kind == HarnessKind::kTransformerWithSyncBatchNorm;
      if (!has_batch_norm || layout.tp == 1) {
        cases.push_back({kind, layout});
      }
    }
  }
  return cases;
}

std::string harness_case_name(
    const ::testing::TestParamInfo<HarnessCase>& info) {
  const auto& [dp, dp_shard, tp] = info.param.layout;
  return c10::str(
      test::name_of(info.param.kind), "On", dp, "x", dp_shard, "x", tp);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    FsdpHarness,
    ::testing::ValuesIn(harness_cases()),
    harness_case_name);

} // namespace
} // namespace weft::fsdp
