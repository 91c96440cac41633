// Units that compute and reduce in other dtypes than those of their shards.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "tests/fsdp/train_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tp/parallelize_module.h"

namespace weft::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

constexpr MixedPrecisionPolicy kBFloat16{.param_dtype = at::kBFloat16};

std::unique_ptr<FullyShardedDataParallel<TestModel>> shard_with(
    const std::shared_ptr<TestModel>& module,
    const mesh::DeviceMesh& dp,
    const MixedPrecisionPolicy& policy) {
  return shard(module, dp, {.mixed_precision = policy});
}

at::ScalarType local_dtype(const at::Tensor& tensor) {
  return dtensor::dtensor_impl(tensor)->local().scalar_type();
}

class MixedPrecision : public ::testing::TestWithParam<ModelCase> {};

TEST_P(MixedPrecision, TrainsAsDistributedDataParallel) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto dp = self.mesh({ranks}, {"dp_shard"});
      for (const std::optional<c10::ScalarType> reduce_dtype :
           {std::optional<c10::ScalarType>(), {at::kFloat}}) {
        SCOPED_TRACE(c10::str(ranks, " ranks, reduces in ", reduce_dtype));
        ddp::DistributedDataParallelOptions options;
        options.mixed_precision = ddp::MixedPrecision{
            .param_dtype = at::kBFloat16, .reduce_dtype = reduce_dtype};
        const auto replica = GetParam().make_deferred();
        dtensor::materialize(*replica, 1);
        ddp::DistributedDataParallel<TestModel> replicas(replica, dp, options);
        auto first = adamw(*replica);
        const auto module = GetParam().make_deferred();
        const auto sharded = shard_with(
            module,
            dp,
            {.param_dtype = at::kBFloat16, .reduce_dtype = reduce_dtype});
        auto second = adamw(*module);
        const Outcome expected{
            train(replicas, first, GetParam(), dp.rank(), 1),
            whole_weights(*replica)};
        const Outcome found{
            train(*sharded, second, GetParam(), dp.rank(), 1),
            whole_weights(*module)};
        expect_same_bits(found, expected);
        EXPECT_EQ(found.weights.front().scalar_type(), at::kFloat);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    MixedPrecision,
    ::testing::ValuesIn(model_cases()),
    [](const auto& info) { return info.param.name; });

TEST(MixedPrecisionPolicy, ShardsGradientsAndOptimizerStateKeepTheirDtype) {
  run_ranks(2, [](RankContext& self) {
    const auto module = model_cases().back().make_deferred();
    const auto model =
        shard_with(module, self.mesh({2}, {"dp_shard"}), kBFloat16);
    auto optimizer = adamw(*module);
    const auto output = model->forward(tokens_of(0, self.rank));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.pow(2).mean().backward();
    optimizer.step();
    for (const auto& item : module->named_parameters()) {
      const auto& parameter = item.value();
      EXPECT_EQ(parameter.scalar_type(), at::kFloat) << item.key();
      EXPECT_EQ(local_dtype(parameter), at::kFloat) << item.key();
      EXPECT_EQ(local_dtype(parameter.grad()), at::kFloat) << item.key();
    }
    for (const auto& [name, value] : model->optimizer_state_dict(optimizer)) {
      EXPECT_NE(value.scalar_type(), at::kBFloat16) << name;
    }
  });
}

TEST(MixedPrecisionPolicy, HalvesUnshardedParametersAndMessages) {
  const auto peaks = [](const MixedPrecisionPolicy& policy) {
    std::pair<int64_t, int64_t> peaks;
    run_ranks(2, [&](RankContext& self) {
      const auto module = model_cases().front().make_deferred();
      const auto model =
          shard_with(module, self.mesh({2}, {"dp_shard"}), policy);
      for (int step = 0; step < 3; ++step) {
        model->forward(rows_of_numbers(step, self.rank)).mean().backward();
      }
      if (self.rank == 0) {
        peaks = {model->peak_unsharded_bytes(), model->peak_message_bytes()};
      }
    });
    return peaks;
  };
  const auto full = peaks({});
  const auto half = peaks(kBFloat16);
  EXPECT_EQ(2 * half.first, full.first);
  // Besides what is gathered and reduced there is this rank's own part in the
  // dtype that is sent.
  EXPECT_LT(half.second, 0.8 * static_cast<double>(full.second));
}

// As set_requires_gradient_sync(False) of PyTorch does: sums of bfloat16 would
// lose small terms.
TEST(MixedPrecisionPolicy, NoSyncAccumulatesInTheDtypeOfReduction) {
  run_ranks(2, [](RankContext& self) {
    const auto module = model_cases().front().make_deferred();
    const auto model = shard_with(
        module,
        self.mesh({2}, {"dp_shard"}),
        {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat});
    const auto own_only = model->no_sync();
    for (int i = 0; i < 2; ++i) {
      model->forward(rows_of_numbers(i, self.rank)).mean().backward();
      for (const auto& parameter : module->parameters()) {
        EXPECT_EQ(local_dtype(parameter.grad()), at::kFloat);
      }
    }
  });
}

TEST(MixedPrecisionPolicy, FullParametersAreInFullPrecision) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp_shard"});
    const auto plain = model_cases().front().make_deferred();
    dtensor::materialize(*plain, 1);
    const auto module = model_cases().front().make_deferred();
    const auto model = shard_with(module, dp, kBFloat16);
    const at::NoGradGuard no_grad;
    model->forward(rows_of_numbers(0, self.rank));
    const auto x = rows_of_numbers(1, self.rank);
    {
      const FullParameters whole(*model, /*write_back=*/true);
      const auto names = plain->named_parameters();
      for (const auto& item : module->named_parameters()) {
        const auto& local = dtensor::dtensor_impl(item.value())->local();
        EXPECT_TRUE(at::equal(local, dtensor::full_tensor(names[item.key()])))
            << item.key();
      }
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(model->forward(x)),
          dtensor::full_tensor(plain->forward(x))));
      auto weight = module->parameters().front();
      weight.add_(1e-6);
      plain->parameters().front().add_(1e-6);
    }
    EXPECT_TRUE(at::equal(
        dtensor::full_tensor(module->parameters().front()),
        dtensor::full_tensor(plain->parameters().front())));
  });
}

TEST(MixedPrecisionPolicy, CastsInputsAndOutputsOfCalls) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto x = rows_of_numbers(0, self.rank);
    const auto module = model_cases().at(1).make_deferred();
    const auto model = shard_with(
        module, dp, {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat});
    EXPECT_EQ(model->forward(x).scalar_type(), at::kFloat);
    EXPECT_EQ(model->forward(x.to(at::kDouble)).scalar_type(), at::kFloat);

    const auto other = model_cases().front().make_deferred();
    const auto uncast = shard_with(
        other,
        dp,
        {.param_dtype = at::kBFloat16, .cast_forward_inputs = false});
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] { uncast->forward(x); }),
        HasSubstr("dtype"));
    EXPECT_EQ(
        uncast->forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

// Sums that wait for a reduction over tp are cast and reduced over dp_shard,
// too.
TEST(MixedPrecisionPolicy, WorksWithTensorParallelism) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp_shard", "tp"});
    const auto chain = model_cases().front();
    const tp::ParallelizePlan plan{
        {"l0", tp::ColwiseParallel()}, {"l1", tp::RowwiseParallel()}};
    const auto losses = [&](const std::optional<c10::ScalarType>& dtype) {
      auto module = chain.make_deferred();
      tp::parallelize_module(*module, mesh["tp"], plan);
      const auto model = shard_with(
          module,
          mesh["dp_shard"],
          {.param_dtype = dtype, .reduce_dtype = at::kFloat});
      auto optimizer = adamw(*module);
      return train(*model, optimizer, chain, mesh.coordinate("dp_shard"), 2);
    };
    const auto full = losses({});
    const auto half = losses(at::kBFloat16);
    for (size_t i = 0; i < full.size(); ++i) {
      EXPECT_NEAR(half[i], full[i], 0.03) << i;
    }
    EXPECT_NE(half, full);
  });
}

TEST(MixedPrecisionPolicy, IsRefusedForDtypesThatAreNotFloatingPoint) {
  const auto world = mesh::World::fake(0, 2);
  const auto dp = mesh::DeviceMesh::create(world, {2}, {"dp_shard"});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        shard_with(
            model_cases().front().make_deferred(),
            dp,
            {.reduce_dtype = at::kInt});
      }),
      AllOf(
          HasSubstr("mixed_precision.reduce_dtype is Int"),
          HasSubstr("expected a floating point dtype")));
}

TEST(MixedPrecisionPolicy, MustBeTheSameOnAllRanks) {
  run_ranks(2, [](RankContext& self) {
    const auto model = shard_with(
        model_cases().front().make_deferred(),
        self.mesh({2}, {"dp_shard"}),
        self.rank == 0 ? kBFloat16 : MixedPrecisionPolicy());
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { model->forward(rows_of_numbers(0, self.rank)); }),
        AllOf(
            HasSubstr("the list of units differs"),
            HasSubstr("param_dtype BFloat16")));
  });
}

} // namespace
} // namespace weft::fsdp
