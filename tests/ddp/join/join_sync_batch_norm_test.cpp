// Statistics of batch normalization under Join are those of the ranks that have
// inputs.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/join/join_training.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::Division;
using test::expect_all_close;
using test::RankContext;
using test::run_ranks;

/// One layer of batch normalization, over the ranks of a channel or alone.
struct Normalized : torch::nn::Module {
  explicit Normalized(std::shared_ptr<SyncBatchNormGroup> channel)
      : a(register_module("a", torch::nn::Linear(6, 8))),
        c(register_module("c", torch::nn::Linear(8, 3))) {
    const torch::nn::BatchNormOptions options(8);
    if (channel) {
      synced = register_module("bn", SyncBatchNorm(options, channel));
    } else {
      own = register_module("bn", torch::nn::BatchNorm1d(options));
    }
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = a(x);
    return c(at::tanh(own ? own(hidden) : synced(hidden)));
  }
  torch::nn::Linear a, c;
  torch::nn::BatchNorm1d own = nullptr;
  SyncBatchNorm synced = nullptr;
};

at::Tensor normalized_input(int64_t rank, int64_t batch) {
  return test::wave(
      {test::join_rows(rank, batch), 6}, double(10 * batch + rank));
}

/// Counts of inputs, how many make a step, and the division.
struct NormalizedRun {
  std::vector<int64_t> counts;
  int64_t micro = 1;
  Division division = Division::kInitial;
};

/// All ranks' rows of a forward at once: one rank has their statistics.
class NormalizedByHand {
 public:
  explicit NormalizedByHand(const NormalizedRun& run) : run_(run) {}

  std::shared_ptr<Normalized> train() {
    const auto ranks = static_cast<int64_t>(run_.counts.size());
    for (int64_t first = 0;; first += run_.micro) {
      const auto active = with_input(first);
      if (active.empty()) {
        return model_;
      }
      optimizer_.zero_grad();
      const auto divisor = static_cast<double>(
          run_.division == Division::kInitial
              ? ranks
              : static_cast<int64_t>(active.size()));
      std::vector<int64_t> last;
      for (int64_t i = first; i < first + run_.micro; ++i) {
        last = with_input(i);
        add_gradients(last, i, divisor);
      }
      if (last.empty()) {
        return model_; // nobody is left to reduce the rest
      }
      optimizer_.step();
    }
  }

 private:
  std::vector<int64_t> with_input(int64_t batch) const {
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < run_.counts.size(); ++rank) {
      if (batch < run_.counts[rank]) {
        ranks.push_back(static_cast<int64_t>(rank));
      }
    }
    return ranks;
  }

  void add_gradients(
      const std::vector<int64_t>& ranks,
      int64_t batch,
      double divisor) {
    if (ranks.empty()) {
      return;
    }
    std::vector<at::Tensor> inputs;
    std::vector<int64_t> sizes;
    for (const auto rank : ranks) {
      inputs.push_back(normalized_input(rank, batch));
      sizes.push_back(inputs.back().size(0));
    }
    const auto outputs =
        model_->forward(at::cat(inputs)).split_with_sizes(sizes);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const auto& output : outputs) {
      loss = loss + output.pow(2).mean() / divisor;
    }
    loss.backward();
  }

  const NormalizedRun& run_;
  std::shared_ptr<Normalized> model_ = std::make_shared<Normalized>(nullptr);
  torch::optim::SGD optimizer_{model_->parameters(), test::option_sgd()};
};

void train_normalized(const NormalizedRun& run, RankContext& self) {
  const auto mesh = self.mesh({self.world_size}, {"dp"});
  auto model =
      std::make_shared<Normalized>(make_sync_batch_norm_group(mesh["dp"]));
  DistributedDataParallel ddp(model, mesh["dp"]);
  torch::optim::SGD optimizer(model->parameters(), test::option_sgd());
  data_parallel::Join join({&ddp}, {}, test::join_kwargs(run.division));
  join.run([&] {
    for (int64_t i = 0; i < run.counts[self.rank]; ++i) {
      const auto step = [&] {
        ddp(normalized_input(self.rank, i)).pow(2).mean().backward();
      };
      if (i % run.micro != run.micro - 1) {
        const auto guard = ddp.no_sync();
        step();
        continue;
      }
      step();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  const auto expected = NormalizedByHand(run).train();
  expect_all_close(model->parameters(), expected->parameters(), 1e-10);
  expect_all_close(model->buffers(), expected->buffers(), 1e-10);
}

TEST(JoinSyncBatchNorm, HasStatisticsOfTheRanksWithInputs) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{5, 3}, {0, 4}, {4, 0, 2}, {3, 5, 8}}) {
    for (const auto division : {Division::kInitial, Division::kEffective}) {
      run_ranks(static_cast<int>(counts.size()), [&](RankContext& self) {
        train_normalized({.counts = counts, .division = division}, self);
      });
    }
  }
}

TEST(JoinSyncBatchNorm, WorksWithAccumulationThatIsCutShort) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{6, 2}, {4, 3}, {2, 6, 3}, {0, 4, 6}}) {
    for (const auto division : {Division::kInitial, Division::kEffective}) {
      run_ranks(static_cast<int>(counts.size()), [&](RankContext& self) {
        train_normalized(
            {.counts = counts, .micro = 2, .division = division}, self);
      });
    }
  }
}

} // namespace
} // namespace weft::ddp
