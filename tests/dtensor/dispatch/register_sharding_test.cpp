// Ops of a namespace of their own, with a kernel, autograd and a rule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/register_sharding.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

// y = a * x * w along the last dim, and its gradient.
at::Tensor scale_cpu(const at::Tensor& x, const at::Tensor& w, double a) {
  return (x * w * a).contiguous();
}

std::tuple<at::Tensor, at::Tensor> scale_backward_cpu(
    const at::Tensor& grad,
    const at::Tensor& x,
    const at::Tensor& w,
    double a) {
  return {
      (grad * w * a).contiguous(),
      (grad * x * a).reshape({-1, w.size(0)}).sum(0)};
}

at::Tensor call_scale(const at::Tensor& x, const at::Tensor& w, double a) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("weft_test::scale", "")
      .typed<decltype(scale_cpu)>()
      .call(x, w, a);
}

struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& w,
      double a) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, w});
    context->saved_data["a"] = a;
    return call_scale(x, w, a);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [gx, gw] = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("weft_test::scale_backward", "")
                        .typed<decltype(scale_backward_cpu)>()
                        .call(
                            grads[0],
                            saved[0],
                            saved[1],
                            context->saved_data["a"].toDouble());
    return {gx, gw, at::Tensor()};
  }
};

at::Tensor scale_autograd(const at::Tensor& x, const at::Tensor& w, double a) {
  return Scale::apply(x, w, a);
}

at::Tensor composed(const at::Tensor& x) {
  return x.relu() + 1;
}

TORCH_LIBRARY(weft_test, library) {
  library.def("scale(Tensor x, Tensor w, float a) -> Tensor");
  library.def(
      "scale_backward(Tensor grad, Tensor x, Tensor w, float a) -> "
      "(Tensor, Tensor)");
  library.def("no_sizes(Tensor x) -> Tensor");
  library.def("composed(Tensor x) -> Tensor", &composed);
}
TORCH_LIBRARY_IMPL(weft_test, CPU, library) {
  library.impl("scale", &scale_cpu);
  library.impl("scale_backward", &scale_backward_cpu);
}
TORCH_LIBRARY_IMPL(weft_test, Autograd, library) {
  library.impl("scale", &scale_autograd);
}

OutputMeta like(c10::IntArrayRef sizes) {
  return {sizes.vec(), row_major_strides(sizes)};
}

std::vector<Strategy> scale_strategies(
    const OpCall& call,
    const StrategyContext&) {
  const int64_t last = call.tensors[0].dim() - 1;
  std::vector<Strategy> strategies{
      {{Shard(last)}, {Shard(last), Shard(0)}}, {{Partial()}, {Partial(), kR}}};
  for (int64_t d = 0; d < last; ++d) {
    strategies.push_back({{Shard(d)}, {Shard(d), kR}});
  }
  return strategies;
}

std::vector<Strategy> scale_backward_strategies(
    const OpCall& call,
    const StrategyContext&) {
  const int64_t last = call.tensors[0].dim() - 1;
  std::vector<Strategy> strategies{
      {{Shard(last), Shard(0)}, {Shard(last), Shard(last), Shard(0)}}};
  for (int64_t d = 0; d < last; ++d) {
    strategies.push_back({{Shard(d), Partial()}, {Shard(d), Shard(d), kR}});
  }
  return strategies;
}

// Ops belong to the process, so one test registers them.
TEST(RegisterSharding, OwnOpsDispatchForwardAndBackward) {
  register_sharding(
      "weft_test::scale",
      {.strategies = scale_strategies, .infer = [](const OpCall& call) {
         return std::vector<OutputMeta>{like(call.tensors[0].sizes())};
       }});
  register_sharding(
      "weft_test::scale_backward",
      {.strategies = scale_backward_strategies,
       .infer = [](const OpCall& call) {
         return std::vector<OutputMeta>{
             like(call.tensors[1].sizes()), like(call.tensors[2].sizes())};
       }});
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    for (const auto& placement : {Shard(0), Shard(1), kR}) {
      const auto x_whole = random({4, 5}, 1);
      const auto w_whole = random({5}, 2);
      auto x = distributed(x_whole.clone().requires_grad_(), mesh, {placement});
      auto w = distributed(w_whole.clone().requires_grad_(), mesh, {kR});
      mesh.group(0).flight_recorder().reset();
      const auto y = call_scale(x, w, 3);
      EXPECT_EQ(spec_of(y).placements(), Placements{placement});
      EXPECT_TRUE(mesh.group(0).flight_recorder().entries().empty());
      y.square().sum().backward();
      auto x_alone = x_whole.clone().requires_grad_();
      auto w_alone = w_whole.clone().requires_grad_();
      (x_alone * w_alone * 3).square().sum().backward();
      expect_close(full_tensor(x.grad()), x_alone.grad(), 1e-12, "x");
      expect_close(full_tensor(w.grad()), w_alone.grad(), 1e-12, "w");
    }
  });
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [] { register_sharding("weft_test::scale", {}); }),
      HasSubstr("already has a sharding rule"));
}

TEST(RegisterSharding, RefusesWhatItCannotRegister) {
  const auto message = [](const char* op, const Rule& rule) {
    return message_of_thrown<c10::ValueError>(
        [&] { register_sharding(op, rule); });
  };
  EXPECT_THAT(message("weft_test::scael", {}), HasSubstr("no op"));
  EXPECT_THAT(message("scale", {}), HasSubstr("has no namespace"));
  EXPECT_THAT(
      message("aten::relu", {}), HasSubstr("already has a sharding rule"));
  EXPECT_THAT(
      message("weft_test::composed", {}),
      HasSubstr("decomposed into other ops"));
  EXPECT_THAT(
      message("weft_test::no_sizes", {.strategies = scale_strategies}),
      HasSubstr("cannot infer the output sizes"));
}

TEST(RegisterSharding, ComposedOpsNeedNone) {
  run_ranks(2, [](RankContext& self) {
    const auto x = distributed(random({4, 5}, 1), line(self), {Shard(0)});
    const auto y = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("weft_test::composed", "")
                       .typed<decltype(composed)>()
                       .call(x);
    EXPECT_EQ(spec_of(y).placements(), Placements{Shard(0)});
    expect_close(full_tensor(y), composed(random({4, 5}, 1)), 0, "values");
  });
}

} // namespace
} // namespace weft::dtensor
