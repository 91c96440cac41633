// Batch normalization over the batches of all ranks, against BatchNorm on one
// rank that has them all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::HasSubstr;
using torch::nn::BatchNormOptions;

constexpr int64_t kFeatures = 3;
constexpr int kPasses = 3;

/// How many rows each rank has.
using RowCounts = std::vector<int64_t>;

int64_t sum_of(const RowCounts& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

at::Tensor
rows_of_rank(const at::Tensor& batch, const RowCounts& rows, int64_t rank) {
  const auto begin =
      std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
  return batch.narrow(0, begin, rows[rank]);
}

/// [rows, C, 2, 2, ...] with `dim` dims.
std::vector<int64_t> batch_sizes(int64_t rows, int64_t dim) {
  std::vector<int64_t> sizes(dim, 2);
  sizes[0] = rows;
  sizes[1] = kFeatures;
  return sizes;
}

/// Gives a layer values that are not those of its start.
template <class Layer>
void fill_layer(Layer& layer, at::ScalarType dtype) {
  layer.to(dtype);
  test::fill_parameters(layer);
}

/// What a layer made of its rows in some passes.
struct LayerTrace {
  std::vector<at::Tensor> outputs, input_grads, parameter_grads, buffers;
};

/// Runs passes whose losses weight each output by a number of its own.
template <class Layer>
LayerTrace run_passes(
    Layer& layer,
    const std::function<at::Tensor(const at::Tensor&)>& own_rows,
    const std::vector<int64_t>& sizes,
    at::ScalarType dtype) {
  LayerTrace trace;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto x = own_rows(wave(sizes, 0.1 + pass, dtype) * 2 + 0.5)
                       .clone()
                       .requires_grad_();
    const auto y = layer.forward(x);
    (y * own_rows(wave(sizes, 7.1 + pass, dtype))).sum().backward();
    trace.outputs.push_back(y.detach());
    trace.input_grads.push_back(x.grad());
  }
  trace.parameter_grads = test::gradients_of(layer);
  for (const auto& buffer : layer.buffers()) {
    trace.buffers.push_back(buffer.clone());
  }
  return trace;
}

LayerTrace run_on_whole_batch(
    const BatchNormOptions& options,
    const std::vector<int64_t>& sizes,
    at::ScalarType dtype) {
  const auto run = [&](auto layer) {
    fill_layer(*layer, dtype);
    return run_passes(
        *layer, [](const at::Tensor& all) { return all; }, sizes, dtype);
  };
  if (sizes.size() <= 3) {
    return run(torch::nn::BatchNorm1d(options));
  }
  return sizes.size() == 4 ? run(torch::nn::BatchNorm2d(options))
                           : run(torch::nn::BatchNorm3d(options));
}

void expect_equal_to_whole_batch(
    RankContext& self,
    const RowCounts& rows,
    const BatchNormOptions& options,
    int64_t dim,
    at::ScalarType dtype,
    double tolerance) {
  const auto sizes = batch_sizes(sum_of(rows), dim);
  const auto mesh = self.mesh({self.world_size}, {"dp"});
  SyncBatchNorm layer(options, make_sync_batch_norm_group(mesh));
  fill_layer(*layer, dtype);
  const auto own_rows = [&](const at::Tensor& all) {
    return rows_of_rank(all, rows, self.rank);
  };
  const auto actual = run_passes(*layer, own_rows, sizes, dtype);
  const auto expected = run_on_whole_batch(options, sizes, dtype);
  for (int pass = 0; pass < kPasses; ++pass) {
    expect_all_close(
        {actual.outputs[pass]}, {own_rows(expected.outputs[pass])}, tolerance);
    expect_all_close(
        {actual.input_grads[pass]},
        {own_rows(expected.input_grads[pass])},
        tolerance);
  }
  for (auto gradient : actual.parameter_grads) {
    mesh.group("dp").all_reduce(gradient).wait();
  }
  // These are sums over all positions.
  expect_all_close(
      actual.parameter_grads, expected.parameter_grads, 10 * tolerance);
  expect_all_close(actual.buffers, expected.buffers, tolerance);
}

class SyncBatchNormOnRanks : public ::testing::TestWithParam<RowCounts> {};

TEST_P(SyncBatchNormOnRanks, EqualsBatchNormOnTheWholeBatch) {
  const auto& rows = GetParam();
  run_ranks(static_cast<int>(rows.size()), [&](RankContext& self) {
    for (const int64_t dim : {2, 3, 4, 5}) {
      for (const auto momentum : {std::optional<double>(0.3), {}}) {
        BatchNormOptions options(kFeatures);
        options.momentum(momentum);
        expect_equal_to_whole_batch(
            self, rows, options, dim, at::kDouble, 1e-12);
        expect_equal_to_whole_batch(self, rows, options, dim, at::kFloat, 1e-5);
      }
    }
  });
}

TEST_P(SyncBatchNormOnRanks, EqualsItWithoutAffineOrRunningStatistics) {
  const auto& rows = GetParam();
  run_ranks(static_cast<int>(rows.size()), [&](RankContext& self) {
    for (const bool affine : {true, false}) {
      const auto options =
          BatchNormOptions(kFeatures).affine(affine).track_running_stats(
              !affine);
      expect_equal_to_whole_batch(self, rows, options, 4, at::kDouble, 1e-12);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Rows,
    SyncBatchNormOnRanks,
    ::testing::Values(
        RowCounts{3, 2},
        RowCounts{0, 5},
        RowCounts{4, 4, 4},
        RowCounts{3, 0, 2},
        RowCounts{1, 1, 1, 1},
        RowCounts{2, 0, 0, 5}));

TEST(SyncBatchNormTest, KeepsSmallDeviationsOfLargeMeans) {
  run_ranks(3, [](RankContext& self) {
    const RowCounts rows{2, 5, 1};
    SyncBatchNorm layer(
        BatchNormOptions(kFeatures),
        make_sync_batch_norm_group(self.mesh({3}, {"dp"})));
    layer->to(at::kDouble);
    const auto x = wave({8, kFeatures, 4}, 0.1);
    torch::nn::BatchNorm1d alone(kFeatures);
    alone->to(at::kDouble);
    const auto expected = rows_of_rank(alone->forward(x), rows, self.rank);
    const auto y = layer->forward(rows_of_rank(x + 1e8, rows, self.rank));
    // The input has 8 digits behind the point. A sum of squares, of 1e16, had
    // no digit of the variance.
    expect_all_close({y.detach()}, {expected.detach()}, 1e-6);
    expect_all_close({layer->running_var}, {alone->running_var}, 1e-7);
  });
}

TEST(SyncBatchNormTest, HasStatisticsOfHalvesInFloat) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    run_ranks(2, [&](RankContext& self) {
      const RowCounts rows{3, 2};
      SyncBatchNorm layer(
          BatchNormOptions(kFeatures),
          make_sync_batch_norm_group(self.mesh({2}, {"dp"})));
      torch::nn::BatchNorm2d alone(kFeatures);
      fill_layer(*layer, at::kFloat);
      fill_layer(*alone, at::kFloat);
      const auto all = wave({5, kFeatures, 6, 6}, 0.1, dtype) * 3 + 2;
      const auto weights = wave(all.sizes(), 2.1, dtype);
      const auto own = [&](const at::Tensor& t) {
        return rows_of_rank(t, rows, self.rank);
      };
      auto x = own(all).clone().requires_grad_();
      auto whole = all.to(at::kFloat).requires_grad_();
      const auto y = layer->forward(x);
      (y * own(weights)).sum().backward();
      const auto expected = alone->forward(whole);
      (expected * weights.to(at::kFloat)).sum().backward();
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_EQ(x.grad().scalar_type(), dtype);
      const double one_unit = dtype == at::kHalf ? 1e-3 : 8e-3;
      expect_all_close({y.detach()}, {own(expected.detach())}, one_unit);
      expect_all_close({x.grad()}, {own(whole.grad())}, one_unit);
      expect_all_close({layer->running_mean}, {alone->running_mean}, 1e-6);
      expect_all_close({layer->running_var}, {alone->running_var}, 1e-6);
    });
  }
}

/// Trained alike with BatchNorm on one rank and SyncBatchNorm on several.
torch::nn::Sequential make_network() {
  torch::nn::Sequential network(
      torch::nn::Linear(4, 6),
      torch::nn::BatchNorm1d(6),
      torch::nn::Tanh(),
      torch::nn::Linear(6, 5),
      torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(5).momentum({})),
      torch::nn::Linear(5, 2));
  network->to(at::kDouble);
  test::fill_parameters(*network);
  return network;
}

class SyncBatchNormInDdp : public ::testing::TestWithParam<RowCounts> {};

TEST_P(SyncBatchNormInDdp, TrainsAsOneRank) {
  const auto& rows = GetParam();
  run_ranks(static_cast<int>(rows.size()), [&](RankContext& self) {
    const auto mesh = self.mesh({self.world_size, 1}, {"dp", "tp"});
    auto network = make_network();
    convert_sync_batchnorm(*network, mesh["dp"]);
    auto alone = make_network();
    DistributedDataParallel ddp(
        network,
        mesh["dp"],
        {.bucket_cap_mb = 1e-5, .reduce_op = mesh::ReduceOp::kSum});
    EXPECT_TRUE(ddp.get_ddp_logging_data().has_sync_bn);
    torch::optim::SGD optimizer(network->parameters(), 0.2);
    torch::optim::SGD own_optimizer(alone->parameters(), 0.2);
    for (int step = 0; step < 5; ++step) {
      const auto x = wave({sum_of(rows), 4}, 0.1 + step);
      optimizer.zero_grad();
      const auto y = ddp(rows_of_rank(x, rows, self.rank));
      (y.pow(2).sum() / static_cast<double>(x.size(0))).backward();
      optimizer.step();
      own_optimizer.zero_grad();
      (alone->forward(x).pow(2).sum() / static_cast<double>(x.size(0)))
          .backward();
      own_optimizer.step();
    }
    expect_all_close(network->parameters(), alone->parameters(), 1e-11);
    expect_all_close(network->buffers(), alone->buffers(), 1e-12);
    network->eval();
    alone->eval();
    const auto x = wave({3, 4}, 9.1);
    expect_all_close({ddp(x).detach()}, {alone->forward(x).detach()}, 1e-11);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Rows,
    SyncBatchNormInDdp,
    ::testing::Values(RowCounts{3, 2}, RowCounts{0, 4}, RowCounts{3, 1, 2}));

TEST(SyncBatchNormTest, TakesDTensors) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto tp = mesh["tp"];
    SyncBatchNorm layer(
        BatchNormOptions(kFeatures), make_sync_batch_norm_group(mesh["dp"]));
    torch::nn::BatchNorm1d alone(kFeatures);
    fill_layer(*layer, at::kDouble);
    fill_layer(*alone, at::kDouble);
    const auto batch = wave({5, kFeatures, 4}, 0.1);
    const RowCounts rows{3, 2};
    const auto own = rows_of_rank(batch, rows, mesh.coordinate("dp"));
    const auto x = dtensor::distribute_tensor(own, tp, {dtensor::Shard(2)})
                       .requires_grad_();
    const auto y = layer->forward(x);
    EXPECT_TRUE(dtensor::is_dtensor(y));
    const auto weights = wave(batch.sizes(), 2.1);
    (dtensor::full_tensor(y) *
     rows_of_rank(weights, rows, mesh.coordinate("dp")))
        .sum()
        .backward();
    auto whole = batch.clone().requires_grad_();
    const auto expected = alone->forward(whole);
    (expected * weights).sum().backward();
    const auto of_rank = [&](const at::Tensor& t) {
      return rows_of_rank(t.detach(), rows, mesh.coordinate("dp"));
    };
    expect_all_close(
        {dtensor::full_tensor(y).detach()}, {of_rank(expected)}, 1e-12);
    expect_all_close(
        {dtensor::full_tensor(x.grad())}, {of_rank(whole.grad())}, 1e-12);
    expect_all_close({layer->running_var}, {alone->running_var}, 1e-12);
  });
}

} // namespace
} // namespace weft::ddp
