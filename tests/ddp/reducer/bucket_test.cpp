// Which gradients are reduced together, when, and where they lie.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::entries_named;
using test::expect_all_close;
using test::gradients_of;
using test::Mlp;
using test::part_of;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::ElementsAre;

/// Every gradient of an Mlp in a bucket of its own.
constexpr double kTinyCap = 1e-6;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Registers its layers in another order than it uses them.
struct Shuffled : torch::nn::Module {
  Shuffled()
      : a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))),
        c(register_module("c", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return b(at::tanh(a(at::tanh(c(x)))));
  }
  torch::nn::Linear a, b, c;
};

class Buckets : public ::testing::TestWithParam<int> {};

TEST_P(Buckets, FollowRegistrationReversedAndThenTheOrderOfTheFirstBackward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Shuffled>();
    // Two layers' gradients: 2 * (36 + 6) doubles.
    DistributedDataParallel ddp(
        model,
        self.mesh({n}, {"dp"}),
        {.bucket_cap_mb = 2 * 42 * 8 / 1048576.0});
    EXPECT_THAT(
        ddp.bucket_names(),
        ElementsAre(
            ElementsAre("c.bias", "c.weight", "b.bias", "b.weight"),
            ElementsAre("a.bias", "a.weight")));
    const auto x = wave({n, 6}, 0.1);
    std::vector<std::string> ready;
    for (const auto& item : model->named_parameters()) {
      auto parameter = item.value();
      parameter.register_hook([&ready, name = item.key()](const at::Tensor&) {
        ready.push_back(name);
      });
    }
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ready.clear();
      ddp(part_of(x, self.rank, 1)).pow(2).mean().backward();
      const auto buckets = ddp.bucket_names();
      ASSERT_EQ(buckets.size(), 2);
      auto joined = buckets[0];
      joined.insert(joined.end(), buckets[1].begin(), buckets[1].end());
      EXPECT_EQ(joined, ready);
      EXPECT_EQ(buckets[0].size(), 4);
    }
  });
}

/// Adds two branches in an order that depends on the rank.
struct Branches : torch::nn::Module {
  explicit Branches(bool swapped)
      : is_swapped(swapped),
        f(register_module("f", torch::nn::Linear(6, 6))),
        g(register_module("g", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_swapped) {
      const auto y = at::sigmoid(g(x));
      return y + at::tanh(f(x));
    }
    const auto y = at::tanh(f(x));
    return y + at::sigmoid(g(x));
  }
  bool is_swapped;
  torch::nn::Linear f, g;
};

TEST_P(Buckets, AreTheFirstRanksWhereTheOrderOfGradientsDiffers) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Branches>(self.rank % 2 == 1);
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = kTinyCap});
    const auto x = wave({n, 6}, 0.1);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(part_of(x, self.rank, 1)).pow(2).mean().backward();
      EXPECT_EQ(ddp.bucket_names()[0][0].substr(0, 1), "g");
    }
    Branches alone(false);
    alone.forward(x).pow(2).mean().backward();
    expect_all_close(gradients_of(*model), gradients_of(alone));
  });
}

TEST_P(Buckets, AreLaunchedWhileBackwardRunsOnceTheOrderIsKnown) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    const auto mesh = self.mesh({n}, {"dp"});
    DistributedDataParallel ddp(model, mesh, {.bucket_cap_mb = kTinyCap});
    int64_t last_gradient_ns = 0;
    model->a->weight.register_hook(
        [&](const at::Tensor&) { last_gradient_ns = now_ns(); });
    model->a->bias.register_hook(
        [&](const at::Tensor&) { last_gradient_ns = now_ns(); });
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      mesh.group("dp").flight_recorder().reset();
      ddp(wave({2, 6}, 0.1)).pow(2).mean().backward();
      const auto entries = entries_named(mesh.group("dp"), "ddp bucket ");
      ASSERT_EQ(entries.size(), 6);
      for (size_t i = 0; i < entries.size(); ++i) {
        EXPECT_EQ(entries[i].name, "ddp bucket " + std::to_string(i) + "/6");
        EXPECT_GT(entries[i].end_ns, 0);
      }
      if (step == 0) {
        EXPECT_GT(entries[0].start_ns, last_gradient_ns);
      } else {
        EXPECT_LT(entries[0].start_ns, last_gradient_ns);
        EXPECT_LT(entries[3].start_ns, last_gradient_ns);
        EXPECT_GT(entries[5].start_ns, last_gradient_ns);
      }
    }
  });
}

TEST_P(Buckets, HoldGradientsAsViewsUnlessAskedNotTo) {
  for (const bool as_view : {true, false}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model,
          self.mesh({self.world_size}, {"dp"}),
          {.gradient_as_bucket_view = as_view});
      const auto expect_views = [&] {
        ddp(wave({2, 6}, 0.1)).pow(2).mean().backward();
        const auto gradients = gradients_of(*model);
        for (size_t i = 1; i < gradients.size(); ++i) {
          EXPECT_EQ(gradients[i].is_alias_of(gradients[0]), as_view);
          EXPECT_TRUE(gradients[i].is_contiguous());
        }
      };
      expect_views();
      EXPECT_EQ(ddp.bucket_names().size(), 1);
      for (const bool set_to_none : {true, false}) {
        model->zero_grad(set_to_none);
        expect_views();
      }
      model->zero_grad();
      const auto guard = ddp.no_sync();
      expect_views();
    });
  }
}

TEST_P(Buckets, KeepTheStridesOfADenseParameter) {
  run_ranks(GetParam(), [](RankContext& self) {
    struct Transposed : torch::nn::Module {
      Transposed()
          : weight(register_parameter("weight", wave({3, 5}, 0.1).t())) {}
      at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
      at::Tensor weight;
    };
    const auto n = self.world_size;
    auto model = std::make_shared<Transposed>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto x = wave({n, 5}, 0.2);
    ddp(part_of(x, self.rank, 1)).pow(2).mean().backward();
    Transposed alone;
    alone.forward(x).pow(2).mean().backward();
    EXPECT_EQ(model->weight.grad().strides(), model->weight.strides());
    expect_all_close(gradients_of(*model), gradients_of(alone));
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Buckets,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

TEST(ImaginedWorld, RunsAndRecordsItsCollectives) {
  const auto world = mesh::World::fake(/*rank=*/2, /*world_size=*/8);
  const auto mesh = mesh::DeviceMesh::create(world, {8}, {"dp"});
  auto model = std::make_shared<Mlp>();
  DistributedDataParallel ddp(model, mesh, {.bucket_cap_mb = kTinyCap});
  for (int step = 0; step < 2; ++step) {
    mesh.group("dp").flight_recorder().reset();
    ddp(wave({2, 6}, 0.1)).pow(2).mean().backward();
    EXPECT_EQ(entries_named(mesh.group("dp"), "ddp bucket ").size(), 6);
  }
}

TEST(OneReplica, NeitherCommunicatesNorTouchesGradients) {
  run_ranks(1, [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    const auto mesh = self.mesh({1}, {"dp"});
    DistributedDataParallel ddp(model, mesh);
    void* seen = nullptr;
    ddp(wave({2, 6}, 0.1)).pow(2).mean().backward();
    seen = model->a->weight.grad().data_ptr();
    const auto gradients = gradients_of(*model);
    EXPECT_FALSE(gradients[0].is_alias_of(gradients[1]));
    model->zero_grad(false);
    ddp(wave({2, 6}, 0.1)).pow(2).mean().backward();
    EXPECT_EQ(model->a->weight.grad().data_ptr(), seen);
    EXPECT_TRUE(mesh.group("dp").flight_recorder().entries().empty());
    EXPECT_TRUE(ddp.bucket_names().empty());
  });
}

} // namespace
} // namespace weft::ddp
