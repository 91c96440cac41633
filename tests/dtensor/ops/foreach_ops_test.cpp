// Ops on lists of tensors, each of which may are elsewhere: every foreach op of
// libtorch's list, fused optimizers, and what gradient scalers ask.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/registration.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_mesh;
using dtensor::test::kR;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Stack = torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

mesh::DeviceMesh grid(const RankContext& self) {
  return self.mesh({2, 2}, {"dp", "tp"});
}

// ---- every foreach op -------------------------------------------------------

// In (0.1, 0.9): inside the domain of every op.
at::Tensor positive(c10::IntArrayRef sizes, uint64_t seed) {
  return random(sizes, seed).sigmoid().mul(0.8).add(0.1);
}

Tensors wholes(const c10::OperatorHandle& op, uint64_t seed) {
  if (op.schema().name() == "aten::_foreach_mm") {
    return {positive({4, 4}, seed), positive({3, 3}, seed + 1)};
  }
  return {
      positive({5, 6}, seed),
      positive({3}, seed + 1),
      positive({}, seed + 2),
      positive({4, 2, 2}, seed + 3)};
}

// An argument list by the schema's types.
Stack sample_of(const c10::OperatorHandle& op) {
  Stack stack;
  uint64_t seed = 1;
  const auto count = static_cast<int64_t>(wholes(op, 0).size());
  for (const auto& argument : op.schema().arguments()) {
    const auto type = argument.type()->str();
    if (type == "Tensor[]") {
      stack.emplace_back(wholes(op, seed += 10));
    } else if (argument.name() == "scalars" && type == "Tensor") {
      stack.emplace_back(random({count}, seed += 10));
    } else if (type == "Tensor") {
      stack.emplace_back(positive({}, seed += 10));
    } else if (type == "Scalar[]") {
      c10::List<at::Scalar> scalars;
      for (int64_t i = 0; i < count; ++i) {
        scalars.push_back(0.5 + static_cast<double>(i));
      }
      stack.emplace_back(scalars);
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else {
      EXPECT_EQ(type, "Scalar") << op.schema();
      stack.emplace_back(0.5);
    }
  }
  return stack;
}

Stack map_lists(
    const Stack& stack,
    const std::function<at::Tensor(const at::Tensor&, size_t, size_t)>& map) {
  Stack mapped;
  for (size_t a = 0; a < stack.size(); ++a) {
    if (stack[a].isTensorList()) {
      auto list = stack[a].toTensorVector();
      for (size_t i = 0; i < list.size(); ++i) {
        list[i] = map(list[i], a, i);
      }
      mapped.emplace_back(std::move(list));
    } else {
      mapped.push_back(stack[a]);
    }
  }
  return mapped;
}

// What the op returns, or else what it wrote to.
Tensors results(const c10::OperatorHandle& op, Stack stack) {
  const auto first = stack[0];
  op.callBoxed(&stack);
  return (stack.empty() ? first : stack[0]).toTensorVector();
}

Placements placements_of(const at::Tensor& tensor, size_t choice) {
  const std::vector<Placements> all{
      {kR, Shard(0)},
      {Shard(0), Partial()},
      {Shard(0), Shard(-1)},
      {Partial(ReduceOp::kAvg), kR},
      {Shard(0), Shard(0)},
      {Partial(), Partial()}};
  auto placements = all[choice % all.size()];
  for (auto& placement : placements) {
    if (placement.is_shard()) {
      placement = tensor.dim() == 0 ? kR : placement.normalized(tensor.dim());
    }
  }
  return placements;
}

bool is_written(const c10::OperatorHandle& op, size_t argument) {
  const auto* alias = op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

// `together`: the i-th tensors lie alike; else each its own way.
void check_foreach(
    const c10::OperatorHandle& op,
    const mesh::DeviceMesh& mesh,
    size_t shift,
    bool together) {
  SCOPED_TRACE(c10::str(op.schema(), " ", shift, together));
  const auto sample = sample_of(op);
  const auto whole =
      results(op, map_lists(sample, [](const at::Tensor& t, size_t, size_t) {
                return t.clone();
              }));
  const auto parts =
      map_lists(sample, [&](const at::Tensor& t, size_t argument, size_t i) {
        auto placements =
            placements_of(t, shift + i + (together ? 0 : argument));
        for (auto& placement : placements) {
          if (placement.is_partial() && is_written(op, argument)) {
            placement = kR;
          }
        }
        return distributed(t.clone(), mesh, placements);
      });
  const auto actual = results(op, parts);
  ASSERT_EQ(actual.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_TRUE(is_dtensor(actual[i])) << i;
    ASSERT_EQ(actual[i].sizes(), whole[i].sizes()) << i;
    expect_close(
        full_tensor(actual[i]), whole[i], 1e-9, "element " + std::to_string(i));
  }
}

std::vector<c10::OperatorHandle> foreach_ops() {
  ensure_dispatch_registered();
  std::vector<c10::OperatorHandle> ops;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (name.name.starts_with("aten::_foreach_") && op && op->hasSchema()) {
      ops.push_back(*op);
    }
  }
  return ops;
}

bool is_out_form(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return arguments.back().is_out();
}

TEST(ForeachOps, EveryForeachOpEqualsOneRank) {
  const auto ops = foreach_ops();
  EXPECT_GT(ops.size(), 200U);
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = grid(self);
    for (const auto& op : ops) {
      // A scalar first: its own test.
      if (op.schema().arguments()[0].type()->str() != "Tensor[]" ||
          (is_out_form(op) && op.schema().name() != "aten::_foreach_add")) {
        continue;
      }
      for (size_t shift = 0; shift < 6; shift += 2) {
        check_foreach(op, mesh, shift, /*together=*/false);
        check_foreach(op, mesh, shift + 1, /*together=*/true);
      }
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  });
}

TEST(ForeachOps, PowerOfANumberTakesItsListSecond) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const auto x = distributed(positive({4, 6}, 1), mesh, {Shard(0), kR});
  const auto y = at::_foreach_pow(2.0, Tensors{x});
  EXPECT_EQ(spec_of(y[0]).to_string(), spec_of(x).to_string());
  expect_close(
      dtensor_impl(y[0])->local(),
      at::pow(2.0, dtensor_impl(x)->local()),
      1e-12,
      "2^x");
}

TEST(ForeachOps, ResultsLieAsTheirTensorsDo) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const Tensors list{
      distributed(random({4, 6}, 1), mesh, {Shard(0), kR}),
      distributed(random({4, 6}, 2).t(), mesh, {kR, Shard(1)}),
      distributed(random({2}, 3), mesh, {Partial(), Shard(0)})};
  const auto doubled = at::_foreach_mul(list, 2.0);
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(spec_of(doubled[i]), spec_of(list[i])) << i;
    EXPECT_EQ(doubled[i].strides(), list[i].strides()) << i;
  }
  for (int64_t d = 0; d < 2; ++d) {
    EXPECT_THAT(mesh.group(d).flight_recorder().counts(), ::testing::IsEmpty());
  }
}

TEST(ForeachOps, TensorsOfSeveralMeshesShareAList) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = grid(self);
    const auto tp = self.mesh({4}, {"tp"});
    const auto a = random({4, 6}, 1);
    const auto b = random({8}, 2);
    const Tensors list{
        distributed(a, mesh, {Shard(0), Shard(1)}),
        distributed(b, tp, {Shard(0)})};
    at::_foreach_mul_(list, 3.0);
    const auto sums = at::_foreach_add(list, list);
    expect_close(full_tensor(sums[0]), a * 6, 1e-12, "grid");
    expect_close(full_tensor(sums[1]), b * 6, 1e-12, "line");
  });
}

TEST(ForeachOps, OneReductionJoinsNormsOfAllThatIsCutAlike) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"tp"});
    for (const double order : {2.0, 1.0, 0.0, 3.0, double(INFINITY)}) {
      Tensors list;
      Tensors expected;
      for (uint64_t i = 0; i < 5; ++i) {
        const auto whole = random({3 + static_cast<int64_t>(i), 2}, i);
        list.push_back(distributed(whole, line, {i == 4 ? kR : Shard(0)}));
        expected.push_back(at::linalg_vector_norm(whole, order));
      }
      line.group(0).flight_recorder().reset();
      const auto norms = at::_foreach_norm(list, order);
      EXPECT_THAT(
          line.group(0).flight_recorder().counts(),
          ElementsAre(Pair("all_reduce", 1)))
          << order;
      for (size_t i = 0; i < list.size(); ++i) {
        EXPECT_TRUE(spec_of(norms[i]).is_replicated());
        expect_close(
            dtensor_impl(norms[i])->local(), expected[i], 1e-12, "norm");
      }
    }
  });
}

// ---- fused optimizers -------------------------------------------------------

struct AdamState {
  Tensors params, grads, means, squares, steps;
};

AdamState adam_state(const std::vector<std::vector<int64_t>>& sizes) {
  AdamState state;
  uint64_t seed = 0;
  for (const auto& size : sizes) {
    state.params.push_back(random(size, ++seed));
    state.grads.push_back(random(size, ++seed));
    state.means.push_back(random(size, ++seed));
    state.squares.push_back(random(size, ++seed).square());
    state.steps.push_back(at::ones({}, at::kFloat));
  }
  return state;
}

void adamw(
    const AdamState& state,
    const std::optional<at::Tensor>& grad_scale = {}) {
  at::_fused_adamw_(
      state.params,
      state.grads,
      state.means,
      state.squares,
      {},
      state.steps,
      /*lr=*/0.1,
      /*beta1=*/0.9,
      /*beta2=*/0.95,
      /*weight_decay=*/0.1,
      /*eps=*/1e-8,
      /*amsgrad=*/false,
      /*maximize=*/false,
      grad_scale);
}

// Parameters and their state as `where` says, gradients as `grads` says.
AdamState placed(
    const AdamState& state,
    const mesh::DeviceMesh& mesh,
    const std::vector<Placements>& where,
    const std::vector<Placements>& grads) {
  AdamState result;
  for (size_t i = 0; i < where.size(); ++i) {
    const auto place = [&](const Tensors& list, const Placements& placements) {
      return distributed(list[i].clone(), mesh, placements);
    };
    result.params.push_back(place(state.params, where[i]));
    result.grads.push_back(place(state.grads, grads[i]));
    result.means.push_back(place(state.means, where[i]));
    result.squares.push_back(place(state.squares, where[i]));
    // Steps: some plain, some DTensors.
    result.steps.push_back(
        i % 2 ? state.steps[i].clone() : place(state.steps, {kR, kR}));
  }
  return result;
}

TEST(ForeachOps, FusedStepsBringGradientsToTheirParameters) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = grid(self);
    const auto plain = adam_state({{4, 6}, {5}, {3, 2}, {8}});
    const std::vector<Placements> where{
        {Shard(0), Shard(1)}, {kR, Shard(0)}, {kR, kR}, {Shard(0), Shard(0)}};
    const std::vector<Placements> grads{
        {Shard(0), Shard(1)}, {Partial(), Shard(0)}, {Partial(), kR}, {kR, kR}};
    const auto parts = placed(plain, mesh, where, grads);
    adamw(parts);
    adamw(plain);
    for (size_t i = 0; i < where.size(); ++i) {
      EXPECT_EQ(spec_of(parts.params[i]).placements(), where[i]);
      expect_close(
          full_tensor(parts.params[i]), plain.params[i], 1e-12, "parameter");
      expect_close(full_tensor(parts.means[i]), plain.means[i], 1e-12, "mean");
    }
  });
}

// Lists of which every tensor is placed as its parameter, in whole vectors.
TEST(ForeachOps, FusedStepsOfPartsThatLieAlikeEqualOneRank) {
  using Step = void (*)(const AdamState&);
  const std::vector<std::pair<std::string, Step>> optimizers{
      {"adamw", [](const AdamState& state) { adamw(state); }},
      {"adam",
       [](const AdamState& state) {
         at::_fused_adam_(
             state.params,
             state.grads,
             state.means,
             state.squares,
             state.squares,
             state.steps,
             /*lr=*/0.1,
             /*beta1=*/0.9,
             /*beta2=*/0.95,
             /*weight_decay=*/0.1,
             /*eps=*/1e-8,
             /*amsgrad=*/true,
             /*maximize=*/true);
       }},
      {"sgd",
       [](const AdamState& state) {
         at::_fused_sgd_(
             state.params,
             state.grads,
             state.means,
             /*weight_decay=*/0.1,
             /*momentum=*/0.9,
             /*lr=*/0.1,
             /*dampening=*/0.0,
             /*nesterov=*/true,
             /*maximize=*/false,
             /*is_first_step=*/false);
       }},
  };
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = grid(self);
    const std::vector<Placements> where{
        {Shard(0), Shard(1)}, {kR, Shard(0)}, {kR, kR}};
    for (const auto& [name, step] : optimizers) {
      const auto plain = adam_state({{16, 32}, {16}, {8, 3}});
      const auto parts = placed(plain, mesh, where, where);
      for (int i = 0; i < 3; ++i) {
        step(parts);
        step(plain);
      }
      for (size_t i = 0; i < where.size(); ++i) {
        EXPECT_EQ(spec_of(parts.params[i]).placements(), where[i]);
        for (const auto list : {&AdamState::params, &AdamState::means}) {
          EXPECT_TRUE(
              at::equal(full_tensor((parts.*list)[i]), (plain.*list)[i]))
              << name << " " << i;
        }
      }
    }
  });
}

TEST(ForeachOps, FusedStepsTakeWholeNumbersAsTensors) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = grid(self);
    const auto plain = random({4, 6}, 1);
    const auto grad = random({4, 6}, 2);
    const auto x = distributed(plain.clone(), mesh, {Shard(0), kR});
    const auto g = distributed(grad, mesh, {Shard(0), kR});
    const auto m =
        distributed(at::zeros({4, 6}, at::kDouble), mesh, {Shard(0), kR});
    const auto lr = distributed(at::full({}, 0.5), mesh, {kR, kR});
    at::_fused_sgd_(
        Tensors{x},
        Tensors{g},
        Tensors{m},
        0.0,
        0.9,
        lr,
        0.0,
        false,
        false,
        true);
    expect_close(full_tensor(x), plain - 0.5 * grad, 1e-7, "step");
    const auto found = distributed(at::ones({}), mesh, {kR, kR});
    at::_fused_sgd_(
        Tensors{x},
        Tensors{g},
        Tensors{m},
        0.0,
        0.9,
        0.5,
        0.0,
        false,
        false,
        false,
        {},
        found);
    expect_close(full_tensor(x), plain - 0.5 * grad, 1e-7, "skipped step");
  });
}

TEST(ForeachOps, FunctionalFusedStepsLeaveTheirArguments) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const auto state =
      placed(adam_state({{4, 6}}), mesh, {{Shard(0), kR}}, {{Shard(0), kR}});
  const auto before = dtensor_impl(state.params[0])->local().clone();
  const auto after = at::_fused_adam(
      state.params,
      state.grads,
      state.means,
      state.squares,
      {},
      state.steps,
      0.1,
      0.9,
      0.95,
      0.0,
      1e-8,
      false,
      false);
  EXPECT_EQ(spec_of(std::get<0>(after)[0]), spec_of(state.params[0]));
  EXPECT_TRUE(at::equal(dtensor_impl(state.params[0])->local(), before));
}

// ---- gradient scalers -------------------------------------------------------

TEST(ForeachOps, EveryRankLearnsOfAnInfiniteGradient) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = grid(self);
    for (const bool infinite : {false, true}) {
      auto whole = at::ones({4, 6});
      if (infinite) {
        whole[3][5] = INFINITY;
      }
      const Tensors grads{
          distributed(at::ones({5}), mesh, {kR, kR}),
          distributed(whole, mesh, {Shard(0), Shard(1)})};
      const auto found = at::zeros({});
      at::_amp_foreach_non_finite_check_and_unscale_(
          grads, const_cast<at::Tensor&>(found), at::full({}, 0.25));
      EXPECT_EQ(found.item<float>(), infinite ? 1.0F : 0.0F) << self.rank;
      expect_close(
          full_tensor(grads[0]), at::full({5}, 0.25), 1e-7, "unscaled");
    }
  });
}

TEST(ForeachOps, FoundInfMayBeADTensor) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"tp"});
    auto whole = at::ones({7});
    whole[6] = NAN;
    const Tensors grads{distributed(whole, line, {Shard(0)})};
    auto found = distributed(at::zeros({1}), line, {kR});
    at::_amp_foreach_non_finite_check_and_unscale_(
        grads, found, distributed(at::full({}, 0.25), line, {kR}));
    EXPECT_EQ(dtensor_impl(found)->local().item<float>(), 1.0F);
    auto scale = distributed(at::full({}, 8.0F), line, {kR});
    auto tracker = distributed(at::zeros({}, at::kInt), line, {kR});
    at::_amp_update_scale_(scale, tracker, found.squeeze(0), 2.0, 0.5, 100);
    EXPECT_EQ(full_tensor(scale).item<float>(), 4.0F);
  });
}

// ---- refusals ---------------------------------------------------------------

TEST(ForeachOps, PlainTensorsAreRefusedByTheirPosition) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const auto x = distributed(random({4, 6}, 1), mesh, {Shard(0), kR});
  const auto plain = random({4, 6}, 2);
  for (const auto& message :
       {message_of_thrown<c10::ValueError>([&] {
          at::_foreach_add(Tensors{x, x}, Tensors{x, plain});
        }),
        message_of_thrown<c10::ValueError>([&] {
          at::_foreach_add_(Tensors{x, x}, Tensors{x, plain});
        })}) {
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("[aten::_foreach_add"),
            HasSubstr("other[1] is a plain tensor"),
            HasSubstr("distribute_tensor()"),
            HasSubstr("[S(0), R]"),
            HasSubstr("rank 1")));
  }
  const auto first = message_of_thrown<c10::ValueError>([&] {
    at::_foreach_mul_(Tensors{x, plain}, 2.0);
  });
  EXPECT_THAT(first, HasSubstr("self[1] is a plain tensor"));
}

TEST(ForeachOps, StateThatLiesElsewhereIsRefused) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  auto state =
      placed(adam_state({{4, 6}}), mesh, {{Shard(0), kR}}, {{Shard(0), kR}});
  state.means[0] = distributed(random({4, 6}, 9), mesh, {kR, kR});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { adamw(state); }),
      AllOf(
          HasSubstr("[aten::_fused_adamw_] exp_avgs[0] is written to"),
          HasSubstr("Redistribute it first"),
          HasSubstr("[S(0), R]"),
          HasSubstr("rank 1")));
}

TEST(ForeachOps, GradientsThatAreScaledInPlaceHaveToLieAsParametersDo) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const auto state =
      placed(adam_state({{4, 6}}), mesh, {{Shard(0), kR}}, {{kR, kR}});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { adamw(state, at::full({}, 2.0)); }),
      HasSubstr("grads[0] is written to"));
}

TEST(ForeachOps, PendingParametersAndOtherMeshesAreRefused) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  const auto other = fake_mesh(1, {4}, {"ep"});
  auto state =
      placed(adam_state({{4, 6}}), mesh, {{Shard(0), kR}}, {{Shard(0), kR}});
  auto pending = state;
  pending.params[0] = distributed(random({4, 6}, 9), mesh, {Partial(), kR});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { adamw(pending); }),
      HasSubstr("self[0] is Partial"));
  state.grads[0] = distributed(random({4, 6}, 9), other, {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { adamw(state); }),
      HasSubstr("grads[0] is on another mesh"));
}

TEST(ForeachOps, ListsOfOtherLengthsAreRefused) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  auto state =
      placed(adam_state({{4, 6}}), mesh, {{Shard(0), kR}}, {{Shard(0), kR}});
  state.grads.push_back(state.grads[0]);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { adamw(state); }),
      HasSubstr("grads: got 2 tensors, expected the 1 of self"));
}

// ---- what is special about single tensors -----------------------------------

TEST(Elementwise, MeansOfLossesKeepUnevenPartsCut) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"tp"});
    const auto x = random({5, 3}, 1).sigmoid();
    const auto y = random({5, 3}, 2).sigmoid();
    const std::vector<
        std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>>
        losses{
            [](const auto& a, const auto& b) { return at::mse_loss(a, b); },
            [](const auto& a, const auto& b) { return at::huber_loss(a, b); },
            [](const auto& a, const auto& b) { return at::l1_loss(a, b); },
            [](const auto& a, const auto& b) {
              return at::smooth_l1_loss(a, b);
            },
            [](const auto& a, const auto& b) {
              return at::soft_margin_loss(a, b);
            },
            [](const auto& a, const auto& b) {
              return at::binary_cross_entropy(a, b);
            },
            [](const auto& a, const auto& b) {
              return at::binary_cross_entropy_with_logits(a, b);
            }};
    for (size_t i = 0; i < losses.size(); ++i) {
      auto plain = x.clone().requires_grad_();
      const auto expected = losses[i](plain, y);
      expected.backward();
      auto part = distributed(x, line, {Shard(0)}).requires_grad_();
      const auto target = distributed(y, line, {Shard(0)});
      line.group(0).flight_recorder().reset();
      const auto actual = losses[i](part, target);
      EXPECT_THAT(
          line.group(0).flight_recorder().counts(), ::testing::IsEmpty())
          << i;
      full_tensor(actual).backward();
      EXPECT_EQ(
          line.group(0).flight_recorder().counts().count("all_gather"), 0U)
          << i;
      expect_close(full_tensor(actual), expected, 1e-12, "loss");
      EXPECT_EQ(spec_of(part.grad()).placement(0), Shard(0)) << i;
      expect_close(full_tensor(part.grad()), plain.grad(), 1e-12, "gradient");
    }
  });
}

TEST(Elementwise, ConjugatesAreValues) {
  run_ranks(2, [](RankContext& self) {
    const auto line = self.mesh({2}, {"tp"});
    const auto x = at::complex(random({4}, 1), random({4}, 2));
    const auto y = at::complex(random({4}, 3), random({4}, 4));
    auto plain = x.clone().requires_grad_();
    (at::abs(plain * y.conj())).sum().backward();
    auto part = distributed(x, line, {Shard(0)}).requires_grad_();
    const auto conj = distributed(y, line, {Shard(0)}).conj();
    expect_close(
        at::view_as_real(full_tensor(conj)),
        at::view_as_real(y.conj().resolve_conj()),
        1e-12,
        "conj");
    at::abs(part * conj).sum().backward();
    expect_close(
        at::view_as_real(full_tensor(part.grad())),
        at::view_as_real(plain.grad().resolve_conj()),
        1e-12,
        "gradient");
  });
}

TEST(Elementwise, RandomSlopesAreThoseOfTheWhole) {
  run_ranks(2, [](RankContext& self) {
    const auto line = self.mesh({2}, {"tp"});
    const auto x = random({5, 4}, 1);
    const auto part = distributed(x, line, {Shard(0)});
    const auto y = full_tensor(at::rrelu(part, 0.1, 0.3, /*training=*/true));
    const auto slope = y / x;
    EXPECT_TRUE(at::where(x > 0, slope == 1, slope >= 0.1).all().item<bool>());
    EXPECT_TRUE(at::where(x > 0, slope == 1, slope <= 0.3).all().item<bool>());
    expect_close(
        full_tensor(at::rrelu(part, 0.1, 0.3)),
        at::rrelu(x, 0.1, 0.3),
        1e-12,
        "mean slope");
  });
}

} // namespace
} // namespace weft::dtensor
