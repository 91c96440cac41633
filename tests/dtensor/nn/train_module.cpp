#include "tests/dtensor/nn/train_module.h"

#include <gtest/gtest.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor::test {
namespace {

constexpr int kSteps = 10;
constexpr double kTolerance = 1e-9;

Built build(
    const ModuleCase& each,
    const mesh::DeviceMesh& mesh,
    int64_t cut_dim) {
  Built built;
  {
    const DeferredInit scope;
    built = each.build();
    built.module->to(at::kDouble);
  }
  for (const auto& parameter : built.module->parameters()) {
    const int64_t dim = std::min(cut_dim, parameter.dim() - 1);
    set_placements(
        parameter, mesh, {Replicate(), dim < 0 ? Replicate() : Shard(dim)});
  }
  for (const auto& buffer : built.module->buffers()) {
    set_placements(buffer, mesh, {Replicate(), Replicate()});
  }
  materialize(*built.module, /*seed=*/11);
  return built;
}

std::vector<at::Tensor> place_inputs(
    const ModuleCase& each,
    const mesh::DeviceMesh& mesh) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < each.inputs.size(); ++i) {
    const int64_t dim = i < each.batch_dims.size() ? each.batch_dims[i] : 0;
    inputs.push_back(distributed(
        each.inputs[i],
        mesh,
        {dim < 0 ? Replicate() : Shard(dim), Replicate()}));
  }
  return inputs;
}

void keep(
    Trace& trace,
    const torch::OrderedDict<std::string, at::Tensor>& items) {
  for (const auto& item : items) {
    trace.tensors.emplace_back(
        item.key(), full_tensor(item.value()).detach().clone());
  }
}

void compare(const Trace& actual, const Trace& expected) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(
        actual.losses[i],
        expected.losses[i],
        kTolerance * std::max(1.0, std::abs(expected.losses[i])))
        << "loss of step " << i;
  }
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < actual.tensors.size(); ++i) {
    expect_close(
        actual.tensors[i].second,
        expected.tensors[i].second,
        kTolerance,
        expected.tensors[i].first);
  }
}

} // namespace

void PrintTo(const ModuleCase& each, std::ostream* stream) {
  *stream << each.name;
}

Trace train_module(
    const ModuleCase& each,
    const mesh::DeviceMesh& mesh,
    int64_t cut_dim,
    const MakeOptimizer& make_optimizer) {
  const auto built = build(each, mesh, cut_dim);
  manual_seed(mesh, 5);
  const auto inputs = place_inputs(each, mesh);
  const auto optimizer = make_optimizer(built.module->parameters());
  Trace trace;
  const auto loss_of = [&] {
    optimizer->zero_grad();
    const auto output = built.forward(inputs);
    auto loss = output.pow(2).mean() + output.mean();
    loss.backward();
    return loss;
  };
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = optimizer->step(loss_of);
    trace.losses.push_back(
        (loss.defined() ? full_tensor(loss) : full_tensor(loss_of()))
            .item<double>());
  }
  keep(trace, built.module->named_parameters());
  keep(trace, built.module->named_buffers());
  return trace;
}

void expect_equal_traces(
    const std::function<Trace(const mesh::DeviceMesh&, int64_t cut_dim)>&
        train) {
  Trace expected;
  weft::test::run_ranks(1, [&](weft::test::RankContext& self) {
    expected = train(self.mesh({1, 1}, {"dp", "tp"}), 0);
  });
  ASSERT_FALSE(expected.losses.empty());
  EXPECT_NE(expected.losses.front(), expected.losses.back());
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1, 2}, {1, 3}, {2, 2}}) {
    for (const int64_t cut_dim : {0, 1}) {
      SCOPED_TRACE(c10::str(shape, ", parameters sharded along dim ", cut_dim));
      weft::test::run_ranks(
          static_cast<int>(shape[0] * shape[1]),
          [&](weft::test::RankContext& self) {
            compare(train(self.mesh(shape, {"dp", "tp"}), cut_dim), expected);
          });
    }
  }
}

} // namespace weft::dtensor::test
