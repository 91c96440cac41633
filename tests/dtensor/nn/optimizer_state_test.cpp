// What an optimizer knows of parameters that are frozen for a while.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/nn/optimizer_state.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/support/expect_error.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

struct FreezeCase {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(
      std::vector<at::Tensor>)>
      make;
};

template <class Optimizer, class Options>
FreezeCase freeze_case(std::string name, const Options& options) {
  return {std::move(name), [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<FreezeCase> freeze_cases() {
  namespace optim = torch::optim;
  return {
      freeze_case<optim::SGD>("SGD", optim::SGDOptions(0.1)),
      freeze_case<optim::SGD>("Momentum", optim::SGDOptions(0.1).momentum(0.9)),
      freeze_case<optim::Adam>("Adam", optim::AdamOptions(0.1)),
      freeze_case<optim::AdamW>(
          "Amsgrad", optim::AdamWOptions(0.1).amsgrad(true)),
      freeze_case<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1)),
      freeze_case<optim::RMSprop>(
          "RMSprop", optim::RMSpropOptions(0.1).momentum(0.5).centered(true))};
}

/// Two parameters, of which the first is frozen at times.
struct FreezeModel : torch::nn::Module {
  FreezeModel(const mesh::DeviceMesh& mesh, const Placement& placement) {
    for (const auto* name : {"first", "second"}) {
      const auto whole = random({5, 3}, name[0]);
      register_parameter(
          name,
          mesh.ndim() > 0 ? distributed(whole, mesh, {placement}).detach()
                          : whole);
    }
  }

  at::Tensor first() { return named_parameters()["first"]; }

  void set_frozen(bool is_frozen) {
    first().mutable_grad() = at::Tensor();
    first().set_requires_grad(!is_frozen);
  }

  void step(torch::optim::Optimizer& optimizer, int64_t number) {
    for (auto& parameter : parameters()) {
      if (parameter.requires_grad()) {
        const at::NoGradGuard no_grad;
        parameter.mutable_grad() = (parameter * (1.0 + 0.3 * number)).detach();
      }
    }
    optimizer.step();
  }
};

StateDict copied(const StateDict& state) {
  StateDict result;
  for (const auto& [key, tensor] : state) {
    result[key] = tensor.clone();
  }
  return result;
}

// Two steps, two with the first parameter frozen, two more; what is known after
// `saved_after` goes into a new optimizer.
void check_freeze(
    const FreezeCase& each,
    const mesh::DeviceMesh& mesh,
    const Placement& placement,
    bool loads_frozen) {
  const auto train = [&](bool is_interrupted) {
    FreezeModel model(mesh, placement);
    auto optimizer = each.make(model.parameters());
    model.step(*optimizer, 0);
    model.step(*optimizer, 1);
    model.set_frozen(true);
    model.step(*optimizer, 2);
    if (is_interrupted) {
      const auto state = copied(optimizer_state_dict(*optimizer, model, mesh));
      optimizer = each.make(model.parameters());
      model.set_frozen(loads_frozen);
      load_optimizer_state_dict(*optimizer, model, state);
      model.set_frozen(true);
    }
    model.step(*optimizer, 3);
    model.set_frozen(false);
    model.step(*optimizer, 4);
    std::vector<at::Tensor> result;
    for (const auto& parameter : model.parameters()) {
      result.push_back(
          is_dtensor(parameter) ? full_tensor(parameter.detach())
                                : parameter.detach().clone());
    }
    return result;
  };
  const auto expected = train(false);
  const auto found = train(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i]))
        << each.name << ", parameter " << i << ", loaded "
        << (loads_frozen ? "frozen" : "thawed") << ": "
        << (found[i] - expected[i]).abs().max();
  }
}

TEST(OptimizerState, OfAFrozenParameterIsKept) {
  for (const auto& each : freeze_cases()) {
    for (const bool loads_frozen : {true, false}) {
      check_freeze(each, mesh::DeviceMesh(), Replicate(), loads_frozen);
    }
  }
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](RankContext& self) {
      for (const auto& each : freeze_cases()) {
        for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
          check_freeze(each, line(self), placement, true);
          check_freeze(each, line(self), placement, false);
        }
      }
    });
  }
}

TEST(OptimizerState, IsNotMadeForAParameterThatNeverLearned) {
  for (const auto& each : freeze_cases()) {
    FreezeModel model(mesh::DeviceMesh(), Replicate());
    const auto optimizer = each.make(model.parameters());
    model.set_frozen(true);
    model.step(*optimizer, 0);
    for (const auto& [key, tensor] :
         optimizer_state_dict(*optimizer, model, mesh::DeviceMesh())) {
      EXPECT_FALSE(key.starts_with("state.first")) << each.name << " " << key;
    }
  }
}

// The momentum of a first step is the gradient, undampened, which zeros cannot
// stand for.
TEST(OptimizerState, OfDampenedMomentumIsLoadedBehindAStepOfZeros) {
  const mesh::DeviceMesh mesh;
  const auto make = [](const std::vector<at::Tensor>& parameters) {
    return torch::optim::SGD(
        parameters,
        torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(
            0.1));
  };
  FreezeModel model(mesh, Replicate());
  auto optimizer = make(model.parameters());
  EXPECT_THAT(
      message_of_thrown<c10::NotImplementedError>(
          [&] { optimizer_state_dict(optimizer, model, mesh); }),
      AllOf(
          HasSubstr("no momentum of \"first\" before its first step"),
          HasSubstr("before a checkpoint is read, one with gradients of zeros "
                    "will do")));
  model.step(optimizer, 0);
  std::vector<at::Tensor> weights;
  for (const auto& parameter : model.parameters()) {
    weights.push_back(parameter.detach().clone());
  }
  const auto saved = copied(optimizer_state_dict(optimizer, model, mesh));
  model.step(optimizer, 1);

  FreezeModel resumed(mesh, Replicate());
  auto other = make(resumed.parameters());
  for (auto& parameter : resumed.parameters()) {
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
  other.step();
  // In place, as a checkpoint is read.
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) {
    resumed.parameters()[i].copy_(weights[i]);
  }
  const auto state = optimizer_state_dict(other, resumed, mesh);
  for (const auto& [key, tensor] : state) {
    tensor.copy_(saved.at(key));
  }
  load_optimizer_state_dict(other, resumed, state);
  resumed.step(other, 1);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(resumed.parameters()[i], model.parameters()[i]));
  }
}

// An AdamW with a group for each learning rate, the last with all that is left.
std::unique_ptr<torch::optim::Optimizer> optimizer_of_groups(
    const std::vector<at::Tensor>& parameters,
    const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < rates.size(); ++i) {
    const bool is_last = i + 1 == rates.size();
    groups.emplace_back(
        std::vector<at::Tensor>(
            parameters.begin() + static_cast<int64_t>(i),
            is_last ? parameters.end()
                    : parameters.begin() + static_cast<int64_t>(i + 1)),
        std::make_unique<torch::optim::AdamWOptions>(rates[i]));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(groups), torch::optim::AdamWOptions());
}

std::string refusal(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& model,
    const StateDict& state) {
  return message_of_thrown<c10::ValueError>(
      [&] { load_optimizer_state_dict(optimizer, model, state); });
}

TEST(OptimizerState, OfSeveralGroupsIsNotLoadedIntoOne) {
  const mesh::DeviceMesh mesh;
  FreezeModel model(mesh, Replicate());
  const auto two = optimizer_of_groups(model.parameters(), {1e-3, 5e-2});
  model.step(*two, 0);
  const auto state = copied(optimizer_state_dict(*two, model, mesh));

  const auto one = optimizer_of_groups(model.parameters(), {1e-4});
  EXPECT_THAT(
      refusal(*one, model, state),
      AllOf(
          HasSubstr("lr of \"first\" is 0.001 and of \"second\" 0.05"),
          HasSubstr("group 0")));
  const auto& options = static_cast<torch::optim::AdamWOptions&>(
      one->param_groups()[0].options());
  EXPECT_EQ(options.lr(), 1e-4) << "nothing was loaded";

  auto alike = state;
  alike["param_groups.second.lr"] = state.at("param_groups.first.lr");
  load_optimizer_state_dict(*one, model, alike);
  EXPECT_EQ(options.lr(), 1e-3);

  for (const std::string name : {"betas", "eps", "weight_decay"}) {
    auto other = alike;
    other["param_groups.second." + name] =
        alike.at("param_groups.second." + name) * 0.5;
    EXPECT_THAT(refusal(*one, model, other), HasSubstr(name + " of \"first\""));
  }
  const auto again = optimizer_of_groups(model.parameters(), {1, 1});
  load_optimizer_state_dict(*again, model, state);
  EXPECT_EQ(
      static_cast<torch::optim::AdamWOptions&>(
          again->param_groups()[1].options())
          .lr(),
      5e-2);
}

} // namespace
} // namespace weft::dtensor
