// Tensors that are made where they lie.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/init/factories.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using weft::test::RankContext;
using weft::test::run_ranks;

void expect_made(
    const at::Tensor& made,
    const at::Tensor& expected,
    const DTensorSpec& spec,
    double tolerance = 0) {
  SCOPED_TRACE(spec.to_string());
  ASSERT_TRUE(is_dtensor(made));
  EXPECT_EQ(made.sizes(), expected.sizes());
  EXPECT_EQ(made.scalar_type(), expected.scalar_type());
  EXPECT_EQ(made.strides(), expected.strides());
  EXPECT_EQ(
      dtensor_impl(made)->local().sizes(),
      c10::IntArrayRef(local_sizes(spec_of(made), made.sizes())));
  expect_close(full_tensor(made), expected, tolerance, "values");
}

void check_constant_factories(const DTensorSpec& spec, c10::IntArrayRef sizes) {
  expect_made(
      zeros(sizes, at::kFloat, spec), at::zeros(sizes, at::kFloat), spec);
  expect_made(ones(sizes, at::kLong, spec), at::ones(sizes, at::kLong), spec);
  expect_made(
      full(sizes, 2.5, at::kDouble, spec),
      at::full(sizes, 2.5, at::kDouble),
      spec);
  EXPECT_EQ(empty(sizes, at::kBFloat16, spec).sizes(), sizes);
}

void check_line_factories(const DTensorSpec& spec) {
  expect_made(arange(7, at::TensorOptions(), spec), at::arange(7), spec);
  expect_made(
      arange(10, -3, -3, at::kInt, spec),
      at::arange(10, -3, -3, at::kInt),
      spec);
  expect_made(
      arange(0.5, 4, 0.25, at::kDouble, spec),
      at::arange(0.5, 4, 0.25, at::kDouble),
      spec,
      1e-15);
  for (const int64_t steps : {0, 1, 2, 9}) {
    expect_made(
        linspace(-1, 2, steps, at::kDouble, spec),
        at::linspace(-1, 2, steps, at::kDouble),
        spec,
        1e-15);
    expect_made(
        logspace(-1, 2, steps, 2, at::kDouble, spec),
        at::logspace(-1, 2, steps, 2, at::kDouble),
        spec,
        1e-14);
  }
}

TEST(Factories, EqualLibtorchsOnEveryPlacement) {
  for (const int n : {1, 2, 3}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& placement : {kR, Shard(0), Shard(-1), Partial()}) {
        const DTensorSpec spec(mesh, {placement});
        check_constant_factories(spec, {5, 4});
        check_constant_factories(spec, {2});
        check_line_factories(spec);
      }
      check_constant_factories({mesh, {kR}}, {});
    });
  }
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    check_constant_factories({mesh, {Shard(0), Shard(0)}}, {5, 3});
    check_line_factories({mesh, {Shard(0), Shard(0)}});
    check_line_factories({mesh, {StridedShard(0, 2), Shard(0)}});
    check_line_factories({mesh, {Partial(), Shard(0)}});
  });
}

TEST(Factories, NoRankMakesTheWhole) {
  run_ranks(2, [](RankContext& self) {
    const auto made = ones({6, 4}, at::kFloat, {line(self), {Shard(0)}});
    const auto& local = dtensor_impl(made)->local();
    EXPECT_EQ(local.storage().nbytes(), 3 * 4 * sizeof(float));
  });
}

TEST(Factories, RandomNumbersDoNotDependOnTheMesh) {
  const auto draw = [](const mesh::DeviceMesh& mesh, Placements placements) {
    manual_seed(mesh, 7);
    const DTensorSpec spec(mesh, placements);
    return std::vector<at::Tensor>{
        full_tensor(rand({5, 6}, at::kFloat, spec)),
        full_tensor(randn({7}, at::kDouble, spec)),
        full_tensor(rand({}, at::kFloat, {mesh, Placements(mesh.ndim(), kR)}))};
  };
  const auto alone = draw(fake_line(0, 1), {kR});
  EXPECT_FALSE(
      alone[0].flatten().slice(0, 0, 7).equal(alone[1].to(at::kFloat)));
  const auto expect_alone = [&](const std::vector<at::Tensor>& drawn) {
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(at::equal(drawn[i], alone[i])) << drawn[i] << alone[i];
    }
  };
  run_ranks(3, [&](RankContext& self) {
    for (const auto& placement : {kR, Shard(0), Shard(-1), Partial()}) {
      expect_alone(draw(line(self), {placement}));
    }
  });
  run_ranks(4, [&](RankContext& self) {
    expect_alone(draw(self.mesh({2, 2}, {"dp", "tp"}), {Shard(0), Shard(-1)}));
  });
}

TEST(Factories, MakeLeavesWhoseGradientsStayPlaced) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto w =
        ones({4}, at::dtype(at::kDouble).requires_grad(true), {mesh, {kR}});
    ASSERT_TRUE(w.is_leaf() && w.requires_grad());
    const auto x = distributed(random({6, 4}, 1), mesh, {Shard(0)});
    (x * w).sum().backward();
    EXPECT_EQ(spec_of(w.grad()).placements(), Placements{kR});
    expect_close(
        full_tensor(w.grad()), random({6, 4}, 1).sum(0), 1e-12, "grad");
  });
}

TEST(Factories, ComputeAtOnceInsideDeferredInit) {
  run_ranks(1, [](RankContext& self) {
    const auto mesh = line(self);
    const DeferredInit scope;
    EXPECT_FALSE(is_deferred(ones({2}, at::kFloat, {mesh, {Shard(0)}})));
  });
}

} // namespace
} // namespace weft::dtensor
