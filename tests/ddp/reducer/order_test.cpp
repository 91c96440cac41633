// Backward passes that have collectives of their own, and passes that no
// forward went before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::gradients_of;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Rows of all ranks change places: block i of rank r becomes block r of rank
/// i, in forward and, with gradients, in backward.
at::Tensor exchange_rows(mesh::Communicator group, const at::Tensor& rows) {
  const auto inputs = rows.contiguous().chunk(group.size(), 0);
  std::vector<at::Tensor> outputs;
  for (const auto& each : inputs) {
    outputs.push_back(at::empty_like(each));
  }
  group.all_to_all(outputs, inputs, "pooled rows").wait();
  return at::cat(outputs, 0);
}

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& rows,
      mesh::Communicator* group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return exchange_rows(*group, rows);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    auto* group = reinterpret_cast<mesh::Communicator*>(
        context->saved_data["group"].toInt());
    return {exchange_rows(*group, gradients[0]), at::Tensor()};
  }
};

/// The model of pytorch/pytorch#72843: `b` runs on the first rank alone, and
/// behind it rows travel between ranks, over the replicas' own group. In
/// registration order, reversed, b's gradient would come before the exchange.
struct Pooled : torch::nn::Module {
  Pooled()
      : a(register_module("a", torch::nn::Linear(6, 8))),
        d(register_module("d", torch::nn::Linear(8, 3))),
        b(register_module("b", torch::nn::Linear(8, 8))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }

  at::Tensor before(const at::Tensor& x, bool uses_b) {
    const auto h = at::tanh(a(x));
    return uses_b ? at::tanh(b(h)) : h;
  }
  at::Tensor forward(const at::Tensor& x) {
    auto h = before(x, is_first);
    return d(ExchangeRows::apply(h, &*group));
  }

  torch::nn::Linear a, d, b;
  bool is_first = false;
  std::optional<mesh::Communicator> group;
};

/// The gradients of all ranks' mean loss, computed at once.
std::vector<at::Tensor> pooled_gradients(int64_t n, int64_t rows) {
  Pooled alone;
  std::vector<std::vector<at::Tensor>> blocks;
  for (int64_t rank = 0; rank < n; ++rank) {
    const auto x = wave({n * rows, 6}, 0.1 + static_cast<double>(rank));
    blocks.push_back(alone.before(x, rank == 0).chunk(n, 0));
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t rank = 0; rank < n; ++rank) {
    std::vector<at::Tensor> received;
    for (int64_t from = 0; from < n; ++from) {
      received.push_back(blocks[from][rank]);
    }
    loss = loss + alone.d(at::cat(received, 0)).pow(2).mean();
  }
  (loss / static_cast<double>(n)).backward();
  return gradients_of(alone);
}

class Order : public ::testing::TestWithParam<int> {};

TEST_P(Order, IsSafeWithUnusedParametersAndOtherCollectivesInBackward) {
  for (const bool is_static : {false, true}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      constexpr int64_t kRows = 2;
      const auto n = self.world_size;
      const auto mesh = self.mesh({n}, {"dp"});
      auto model = std::make_shared<Pooled>();
      model->is_first = self.rank == 0;
      model->group = mesh.group("dp");
      DistributedDataParallel ddp(
          model,
          mesh,
          {.bucket_cap_mb = 1e-6,
           .find_unused_parameters = !is_static,
           .static_graph = is_static});
      const auto x = wave({n * kRows, 6}, 0.1 + static_cast<double>(self.rank));
      const auto expected = pooled_gradients(n, kRows);
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        ddp(x).pow(2).mean().backward();
        expect_all_close(gradients_of(*model), expected);
      }
    });
  }
}

TEST_P(Order, NothingIsReducedBeforeTheEndOfTheFirstBackward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh, {.bucket_cap_mb = 1e-6});
    auto x = wave({2, 6}, 0.1).requires_grad_();
    std::vector<size_t> reduced;
    x.register_hook([&](const at::Tensor&) {
      reduced.push_back(
          test::entries_named(mesh.group("dp"), "ddp bucket").size());
    });
    for (int step = 0; step < 2; ++step) {
      mesh.group("dp").flight_recorder().reset();
      ddp(x).sum().backward();
    }
    EXPECT_EQ(reduced[0], 0U);
    EXPECT_GT(reduced[1], 0U);
  });
}

TEST_P(Order, ABackwardWithoutForwardIsRefusedOnAllRanks) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto x = wave({2, 6}, 0.1);
    ddp(x).sum().backward();
    // One rank alone forgets the wrapper.
    const auto forgets = [&] {
      (self.rank == 0 ? model->forward(x) : ddp(x)).sum().backward();
    };
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(forgets),
        AllOf(
            HasSubstr("backward without a forward"),
            HasSubstr("rank 0: a.weight"),
            HasSubstr("a (Linear)"),
            HasSubstr("Call the wrapped model")));
    model->zero_grad();
    ddp(x).sum().backward();
    {
      const auto guard = ddp.no_sync();
      model->forward(x).sum().backward();
    }
  });
}

TEST_P(Order, AGraphThatIsKeptMayBeRunAgain) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto x = wave({2, 6}, 0.1);
    const auto loss = ddp(x).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    Mlp alone;
    (alone.forward(x).sum() * 2).backward();
    expect_all_close(gradients_of(*model), gradients_of(alone));
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Order,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
