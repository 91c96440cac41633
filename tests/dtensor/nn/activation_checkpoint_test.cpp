// What is checkpointed gives the numbers of what is not, and keeps less.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/nn/activation_checkpoint.h"
#include "dtensor/nn/distribute_module.h"
#include "dtensor/random/random_state.h"
#include "dtensor/scopes/autocast.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/scopes/saved_tensor_hooks.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// --- saved tensors
// --------------------------------------------------------------

TEST(SavedTensorsHooks, AreAskedForWhatBackwardReads) {
  const auto x = at::full({3}, 2.0).requires_grad_();
  int packed = 0;
  int unpacked = 0;
  at::Tensor y;
  {
    const SavedTensorsHooks hooks(
        [&](const at::Tensor& tensor) -> SavedTensorsHooks::Packed {
          ++packed;
          return std::make_shared<at::Tensor>(tensor.to(at::kHalf));
        },
        [&](const SavedTensorsHooks::Packed& kept) {
          ++unpacked;
          return static_cast<at::Tensor*>(kept.get())->to(at::kFloat) + 1;
        });
    y = (x * x).sum();
  }
  const auto untouched = x * x;
  EXPECT_EQ(packed, 2);
  y.backward();
  EXPECT_EQ(unpacked, 2);
  // Each factor's gradient is the other one as unpacked, 3 and not 2.
  EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 6.0)));
  EXPECT_TRUE(at::equal(untouched, at::full({3}, 4.0)));
}

TEST(SavedTensorsHooks, TheInnermostCounts) {
  const auto x = at::ones({2}).requires_grad_();
  std::vector<int> calls;
  const auto hooks = [&](int name) {
    return SavedTensorsHooks(
        [&calls, name](const at::Tensor& t) -> SavedTensorsHooks::Packed {
          calls.push_back(name);
          return std::make_shared<at::Tensor>(t);
        },
        [](const SavedTensorsHooks::Packed& kept) {
          return *static_cast<at::Tensor*>(kept.get());
        });
  };
  const auto outer = hooks(1);
  const auto a = x.exp();
  {
    const auto inner = hooks(2);
    const auto b = x.exp();
  }
  const auto c = x.exp();
  EXPECT_THAT(calls, ElementsAre(1, 2, 1));
}

// --- a model
// ----------------------------------------------------------------------

constexpr int64_t kWidth = 12;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
  }

  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return x + dropout(down(torch::gelu(up(norm(x)))));
  }

  int runs = 0;
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Block);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int64_t blocks) {
    for (int64_t i = 0; i < blocks; ++i) {
      list->push_back(Block());
    }
    register_module("list", list);
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *list) {
      x = call(std::static_pointer_cast<BlockImpl>(block), x);
    }
    return x;
  }

  torch::nn::ModuleList list;
};
TORCH_MODULE(Stack);

bool is_block(const std::string& /*name*/, torch::nn::Module& module) {
  return module.as<BlockImpl>() != nullptr;
}

std::vector<at::Tensor> gradients_of(torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : module.parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

// Loss and gradients of `steps` passes from the same random numbers.
std::vector<at::Tensor> results(Stack& model, const at::Tensor& x) {
  model->zero_grad();
  torch::manual_seed(5);
  const auto loss = model->forward(x).square().sum();
  // Backward draws nothing of its own from where forward has come to.
  const auto next = at::rand({2});
  loss.backward();
  auto all = gradients_of(*model);
  all.push_back(loss.detach());
  all.push_back(next);
  all.push_back(at::rand({2}));
  return all;
}

void expect_equal(
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(actual[i].defined()) << i;
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

TEST(ActivationCheckpoint, GivesTheSameBitsDropoutIncluded) {
  torch::manual_seed(1);
  Stack model(3);
  const auto x = at::randn({4, kWidth});
  const auto expected = results(model, x);
  const auto picked = apply_activation_checkpointing(*model, is_block);
  EXPECT_THAT(picked, ElementsAre("list.0", "list.1", "list.2"));
  expect_equal(results(model, x), expected);
  EXPECT_EQ(model->list[0]->as<BlockImpl>()->runs, 3);
}

TEST(ActivationCheckpoint, PicksModules) {
  Stack model(3);
  const auto picked = apply_activation_checkpointing(
      *model, [](const auto& name, auto&) { return name == "list.1"; });
  EXPECT_THAT(picked, ElementsAre("list.1"));
  model->forward(at::randn({2, kWidth})).sum().backward();
  EXPECT_EQ(model->list[0]->as<BlockImpl>()->runs, 1);
  EXPECT_EQ(model->list[1]->as<BlockImpl>()->runs, 2);
}

TEST(ActivationCheckpoint, IsOffWithoutGradients) {
  Stack model(1);
  apply_activation_checkpointing(*model, is_block);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(at::randn({2, kWidth})).requires_grad());
  EXPECT_EQ(model->list[0]->as<BlockImpl>()->runs, 1);
}

TEST(ActivationCheckpoint, RunsAgainInEachBackward) {
  torch::manual_seed(2);
  Stack model(2);
  const auto x = at::randn({2, kWidth}).requires_grad_();
  const auto twice = [&] {
    torch::manual_seed(3);
    const auto loss = model->forward(x).sum();
    const auto first = torch::autograd::grad({loss}, {x}, {}, true)[0];
    return std::vector{first, torch::autograd::grad({loss}, {x})[0]};
  };
  const auto expected = twice();
  apply_activation_checkpointing(*model, is_block);
  expect_equal(twice(), expected);
  EXPECT_EQ(model->list[0]->as<BlockImpl>()->runs, 1 + 3);
}

TEST(ActivationCheckpoint, OfAFunction) {
  const auto x = at::randn({3}, at::kDouble).requires_grad_();
  int runs = 0;
  const auto outputs = activation_checkpoint(
      [&](const std::vector<at::Tensor>& inputs) {
        ++runs;
        return std::vector{inputs[0].sin() * inputs[1], inputs[1].exp()};
      },
      {x, x * 2});
  EXPECT_EQ(runs, 1);
  (outputs[0].sum() + outputs[1].sum()).backward();
  EXPECT_EQ(runs, 2);
  const auto y = x.detach();
  const auto expected = y.cos() * 2 * y + y.sin() * 2 + 2 * (2 * y).exp();
  EXPECT_TRUE(at::allclose(x.grad(), expected, 1e-12, 1e-12));
}

TEST(ActivationCheckpoint, WithinAnother) {
  torch::manual_seed(4);
  Stack model(2);
  const auto x = at::randn({2, kWidth}).requires_grad_();
  const auto gradient = [&] {
    torch::manual_seed(3);
    return torch::autograd::grad({model->forward(x).sum()}, {x})[0];
  };
  const auto expected = gradient();
  apply_activation_checkpointing(*model, is_block);
  checkpoint_activations(*model);
  const auto all = [&] {
    torch::manual_seed(3);
    const auto loss = call(model, x).sum();
    return torch::autograd::grad({loss}, {x})[0];
  };
  EXPECT_TRUE(at::equal(all(), expected));
}

// What is computed on the way is gone when forward has returned.
TEST(ActivationCheckpoint, KeepsOnlyInputs) {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
  const auto forward = [&](const std::vector<at::Tensor>& inputs) {
    const auto inside = inputs[0].exp();
    made.emplace_back(inside.getIntrusivePtr());
    return std::vector{inside.sin()};
  };
  const auto x = at::randn({3}).requires_grad_();
  const auto kept = forward({x});
  ASSERT_EQ(made.size(), 1U);
  EXPECT_FALSE(made[0].expired());
  const auto dropped = activation_checkpoint(forward, {x});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_TRUE(made[1].expired());
}

// Results that a module keeps hold the first run's nodes until the second run
// replaces them, and do not hold what backward needs.
TEST(ActivationCheckpoint, AModuleMayKeepAResult) {
  at::Tensor kept;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
  const auto x = at::ones({3}).requires_grad_();
  const auto y = activation_checkpoint(
      [&](const std::vector<at::Tensor>& inputs) {
        const auto inside = inputs[0].exp();
        made.emplace_back(inside.getIntrusivePtr());
        kept = inside.sin();
        return std::vector{inside.cos()};
      },
      {x})[0];
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(made.back().expired());
  EXPECT_THAT(
      [&] { kept.sum().backward(); },
      ThrowsMessage<c10::Error>(HasSubstr("Do not store results of forward")));
}

// exp() saves its own output.
TEST(ActivationCheckpoint, LeavesNothingBehind) {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
  {
    const auto x = at::randn({3}).requires_grad_();
    const auto outputs = activation_checkpoint(
        [&](const std::vector<at::Tensor>& inputs) {
          const auto inside = inputs[0].exp();
          made.emplace_back(inside.getIntrusivePtr());
          const auto result = inside.exp();
          made.emplace_back(result.getIntrusivePtr());
          return std::vector{result};
        },
        {x * 2});
    outputs[0].sum().backward();
  }
  // The second run stops where it has saved all.
  ASSERT_EQ(made.size(), 3U);
  for (const auto& tensor : made) {
    EXPECT_TRUE(tensor.expired());
  }
}

struct FickleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return ++runs % 2 == 1 ? x.exp().sin() : x.narrow(0, 0, 2).exp().sin();
  }
  int runs = 0;
};
TORCH_MODULE(Fickle);

TEST(ActivationCheckpoint, RefusesAnotherSecondRun) {
  Fickle fickle;
  checkpoint_activations(*fickle);
  const auto x = at::ones({3}).requires_grad_();
  const auto y = call(fickle, x).sum();
  EXPECT_THAT(
      [&] { y.backward(); },
      ThrowsMessage<c10::Error>(AllOf(
          HasSubstr("[activation_checkpoint]"),
          HasSubstr("number 0 was Float [3]"),
          HasSubstr("is Float [2] in the recomputation"))));
}

// --- over a mesh
// ------------------------------------------------------------------

// Deferred, up cut by columns and down by rows.
Stack parallel_stack(const mesh::DeviceMesh& mesh) {
  Stack model{nullptr};
  {
    const DeferredInit scope;
    model = Stack(2);
  }
  for (const auto& block : *model->list) {
    auto& own = *block->as<BlockImpl>();
    distribute_parameter(*own.up, "weight", mesh, {Shard(0)}, "up");
    distribute_parameter(*own.up, "bias", mesh, {Shard(0)}, "up");
    distribute_parameter(*own.down, "weight", mesh, {Shard(1)}, "down");
    parameter_info(own.down->weight).linear.output = Placements{Replicate()};
  }
  replicate_unplaced(*model, mesh);
  materialize(*model, /*seed=*/9);
  return model;
}

TEST(ActivationCheckpoint, OnAMeshDrawsTheSameAndCallsAgain) {
  for (const int ranks : {1, 2, 3}) {
    test::run_ranks(ranks, [&](test::RankContext& self) {
      const auto mesh = self.mesh({ranks}, {"tp"});
      auto model = parallel_stack(mesh);
      const auto x = distribute_tensor(
          at::arange(4.0 * kWidth).view({4, kWidth}) / 50, mesh, {Replicate()});
      const auto run = [&] {
        model->zero_grad();
        manual_seed(mesh, 77);
        const auto loss = model->forward(x).square().sum();
        full_tensor(loss).backward();
        auto all = gradients_of(*model);
        all.push_back(loss.detach());
        for (auto& tensor : all) {
          tensor = full_tensor(tensor).clone();
        }
        EXPECT_EQ(random_state(mesh).sequence, 2U);
        return all;
      };
      auto& flight_recorder = mesh.group("tp").flight_recorder();
      flight_recorder.reset();
      const auto expected = run();
      const auto calls = flight_recorder.entries().size();
      apply_activation_checkpointing(*model, is_block);
      flight_recorder.reset();
      expect_equal(run(), expected);
      // Each block's all_reduce, behind which the dropout saves its mask.
      EXPECT_EQ(flight_recorder.entries().size(), calls + (ranks > 1 ? 2 : 0));
    });
  }
}

// A function, or a module without parameters, tells no mesh.
TEST(ActivationCheckpoint, RedrawsTheSameNumbersOnAllTensors) {
  test::run_ranks(2, [&](test::RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    auto x = distribute_tensor(at::ones({8, 4}), mesh, {Shard(0)});
    x.requires_grad_();
    const auto drop = [&x](const std::vector<at::Tensor>&) {
      return std::vector{at::dropout(x, 0.5, true).square()};
    };
    manual_seed(mesh, 3);
    const auto y = activation_checkpoint(drop, {})[0];
    at::dropout(x, 0.5, true);
    y.sum().backward();
    // Each element's derivative is 2 y / x, and x is 1.
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), 2 * full_tensor(y.detach())));
    EXPECT_EQ(random_state(mesh).sequence, 2U);
  });
}

TEST(ActivationCheckpoint, AutocastForgetsTheCastsOfTheSecondRun) {
  torch::manual_seed(6);
  const auto train = [](bool checkpointed) {
    torch::manual_seed(7);
    auto linear = torch::nn::Linear(4, 4);
    const auto x = at::randn({3, 4});
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU, at::kBFloat16);
        const auto forward = [&](const std::vector<at::Tensor>& inputs) {
          return std::vector{torch::tanh(linear(inputs[0])).exp()};
        };
        const auto y =
            checkpointed ? activation_checkpoint(forward, {x}) : forward({x});
        loss = y[0].to(at::kFloat).square().sum();
      }
      linear->zero_grad();
      loss.backward();
      const at::NoGradGuard no_grad;
      linear->weight.sub_(linear->weight.grad(), 0.1);
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(ActivationCheckpoint, TheWholeModelIsOneRun) {
  Stack model(2);
  const auto picked = apply_activation_checkpointing(
      *model, [](const auto&, auto&) { return true; });
  EXPECT_THAT(picked, ElementsAre(""));
}

} // namespace
} // namespace weft::dtensor
