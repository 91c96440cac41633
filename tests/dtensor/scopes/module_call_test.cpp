// What hooks see of a call and what they may replace.

#include "dtensor/scopes/module_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect_error.h"

namespace weft::dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;

at::Tensor number(double value) {
  return at::scalar_tensor(value, at::kDouble);
}

double value_of(const at::Tensor& tensor) {
  return tensor.item<double>();
}

/// a - b * factor - mask, and the number of its calls.
struct Three : torch::nn::Module {
  at::Tensor forward(
      const at::Tensor& a,
      int64_t factor,
      const at::Tensor& b,
      const std::optional<at::Tensor>& mask = std::nullopt) {
    ++calls;
    const auto y = a - b * factor;
    return mask ? y - *mask : y;
  }
  int calls = 0;
};

TEST(ModuleCall, WithoutHooksTheArgumentsPass) {
  const auto module = std::make_shared<Three>();
  const auto y =
      call(module, number(1), 2, number(3), kwarg("mask", number(10)));
  EXPECT_EQ(value_of(y), -15);
  EXPECT_EQ(find_module_hooks(*module), nullptr);
}

TEST(ModuleCall, HooksSeeAllTensorsByPositionAndByName) {
  const auto module = std::make_shared<Three>();
  auto& hooks = module_hooks(*module);
  std::vector<double> args;
  hooks.before.emplace_back([&](std::vector<at::Tensor>& inputs) {
    for (auto& input : inputs) {
      args.push_back(value_of(input));
      input = input * 10;
    }
  });
  hooks.before.emplace_back([&](CallInputs& inputs) {
    ASSERT_EQ(inputs.kwargs.size(), 1);
    EXPECT_EQ(inputs.kwargs[0].name, "mask");
    inputs.kwargs[0].tensor = inputs.kwargs[0].tensor + inputs.args.at(1);
  });
  hooks.after.emplace_back([](const at::Tensor& y) { return y * 2; });
  hooks.after.emplace_back(
      [](std::vector<at::Tensor>& outputs) { outputs.at(0).add_(1); });
  auto a = number(1);
  const auto mask = kwarg("mask", number(10));
  // 10 - 30 * 2 - (10 + 30)
  EXPECT_EQ(value_of(call(module, a, 2, number(3), mask)), -90 * 2 + 1);
  EXPECT_THAT(args, ElementsAre(1, 3));
  EXPECT_EQ(value_of(a), 1);
}

struct Several : torch::nn::Module {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  std::tuple<at::Tensor, Pair> forward(const at::Tensor& x) {
    return {x, {x + 1, x + 2}};
  }
};

struct Listed : torch::nn::Module {
  std::vector<at::Tensor> forward(const at::Tensor& x) { return {x, x + 1}; }
};

void double_all(std::vector<at::Tensor>& outputs) {
  for (auto& output : outputs) {
    output = output * 2;
  }
}

TEST(ModuleCall, OutputsAreTuplesOrLists) {
  const auto several = std::make_shared<Several>();
  const auto listed = std::make_shared<Listed>();
  for (const double scale : {1.0, 2.0}) {
    const auto [first, rest] = call(several, number(1));
    EXPECT_EQ(value_of(first), 1 * scale);
    EXPECT_EQ(value_of(std::get<0>(rest)), 2 * scale);
    EXPECT_EQ(value_of(std::get<1>(rest)), 3 * scale);
    const auto list = call(listed, number(1));
    ASSERT_EQ(list.size(), 2);
    EXPECT_EQ(value_of(list[1]), 2 * scale);
    module_hooks(*several).after.emplace_back(double_all);
    module_hooks(*listed).after.emplace_back(double_all);
  }
}

TEST(ModuleCall, AHookOfOneOutputRefusesSeveral) {
  const auto listed = std::make_shared<Listed>();
  module_hooks(*listed).after.emplace_back(
      [](const at::Tensor& y) { return y; });
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { call(listed, number(1)); }),
      HasSubstr("2 vs 1. Write the hook as void(std::vector<at::Tensor>&)"));
}

TEST(ModuleCall, HooksNeitherAddNorRemoveTensors) {
  const auto expect_refused = [](const std::string& what, auto change) {
    const auto module = std::make_shared<Three>();
    change(module_hooks(*module));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { call(module, number(1), 2, number(3)); }),
        HasSubstr(what));
  };
  expect_refused("number of arguments after a before hook", [](auto& hooks) {
    hooks.before.emplace_back(
        [](std::vector<at::Tensor>& inputs) { inputs.pop_back(); });
  });
  expect_refused("number of named arguments", [](auto& hooks) {
    hooks.before.emplace_back([](CallInputs& inputs) {
      inputs.kwargs.push_back(kwarg("more", number(0)));
    });
  });
  expect_refused("number of outputs after an after hook", [](auto& hooks) {
    hooks.after.emplace_back(
        [](std::vector<at::Tensor>& outputs) { outputs.clear(); });
  });
  expect_refused("number of outputs after an around hook", [](auto& hooks) {
    hooks.around.emplace_back(
        [](const ModuleHooks::Forward&) { return std::vector<at::Tensor>(); });
  });
}

TEST(ModuleCall, ALaterHookRunsAroundAnEarlierOne) {
  const auto module = std::make_shared<Three>();
  auto& hooks = module_hooks(*module);
  std::vector<std::string> order;
  const auto note = [&](const std::string& name) {
    return [&order, name](const ModuleHooks::Forward& forward) {
      order.push_back(name);
      auto outputs = forward();
      order.push_back("end of " + name);
      return outputs;
    };
  };
  hooks.around.emplace_back(note("first"));
  hooks.around.emplace_back(note("second"));
  hooks.before.emplace_back(
      [&](std::vector<at::Tensor>&) { order.emplace_back("before"); });
  hooks.after.emplace_back(
      [&](std::vector<at::Tensor>&) { order.emplace_back("after"); });
  EXPECT_EQ(value_of(call(module, number(1), 2, number(3))), -5);
  EXPECT_THAT(
      order,
      ElementsAre(
          "second",
          "first",
          "before",
          "after",
          "end of first",
          "end of second"));
}

// Activation checkpointing runs a call again in backward.
TEST(ModuleCall, AroundMayKeepACallAndRunItAgain) {
  ModuleHooks::Forward kept;
  {
    const auto module = std::make_shared<Three>();
    auto& hooks = module_hooks(*module);
    hooks.around.emplace_back([&](const ModuleHooks::Forward& forward) {
      kept = forward;
      return forward();
    });
    hooks.before.emplace_back(
        [](std::vector<at::Tensor>& inputs) { inputs[0] = inputs[0] * 10; });
    EXPECT_EQ(
        value_of(
            call(module, number(1), 2, number(3), kwarg("mask", number(100)))),
        10 - 6 - 100);
    EXPECT_EQ(module->calls, 1);
    kept();
    EXPECT_EQ(module->calls, 2);
  }
  const auto again = kept();
  ASSERT_EQ(again.size(), 1);
  EXPECT_EQ(value_of(again[0]), 10 - 6 - 100);
  EXPECT_EQ(value_of(kept()[0]), 10 - 6 - 100);
}

/// Changes what its caller has.
struct Counts : torch::nn::Module {
  at::Tensor
  forward(const at::Tensor& x, int& count, std::unique_ptr<int> own) {
    count += *own;
    return x + count;
  }
};

TEST(ModuleCall, WhatCannotBeKeptPassesUnlessItHasToBe) {
  const auto module = std::make_shared<Counts>();
  int count = 0;
  const auto run = [&] {
    return value_of(call(module, number(1), count, std::make_unique<int>(2)));
  };
  EXPECT_EQ(run(), 3);
  auto& hooks = module_hooks(*module);
  hooks.after.emplace_back([](const at::Tensor& y) { return y * 2; });
  EXPECT_EQ(run(), 10);
  EXPECT_EQ(count, 4);
  hooks.around.emplace_back(
      [](const ModuleHooks::Forward& forward) { return forward(); });
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(run),
      HasSubstr("takes it by non-const reference"));
  EXPECT_EQ(count, 4);
}

} // namespace
} // namespace weft::dtensor
