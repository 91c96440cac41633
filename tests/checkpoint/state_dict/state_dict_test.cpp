// The state of models and optimizers, got and set: sharded and whole, by all
// ranks and from rank 0.

#include "checkpoint/state_dict/state_dict.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "tp/parallelize_module.h"
#include "tp/style.h"

namespace weft::checkpoint {
namespace {

using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StateDict;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Block : torch::nn::Module {
  Block() {
    up = register_module("up", torch::nn::Linear(6, 10));
    down = register_module("down", torch::nn::Linear(10, 3));
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};

struct Model : torch::nn::Module {
  explicit Model(double start = 0) {
    first = register_module("first", std::make_shared<Block>());
    second = register_module("second", std::make_shared<Block>());
    count = register_buffer("count", at::full({}, start));
    angles = register_buffer("angles", at::full({4}, start));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::arange(parameter.numel(), at::kFloat)
                          .add_(start)
                          .view_as(parameter));
      start += 1000;
    }
  }
  std::shared_ptr<Block> first;
  std::shared_ptr<Block> second;
  at::Tensor count;
  at::Tensor angles;
};

/// A model that is sharded over tp; the same values with the same `start`.
std::shared_ptr<Model> cut_model(const mesh::DeviceMesh& mesh, double start) {
  auto model = std::make_shared<Model>(start);
  tp::parallelize_module(
      *model,
      mesh["tp"],
      {{"*.up", tp::ColwiseParallel()}, {"*.down", tp::RowwiseParallel()}});
  return model;
}

using AdamW = torch::optim::AdamW;

std::unique_ptr<AdamW> adam(Model& model, double lr) {
  return std::make_unique<AdamW>(
      model.parameters(), torch::optim::AdamWOptions(lr));
}

/// Gradients that depend on the place in the full tensor alone.
void train(Model& model, torch::optim::Optimizer& optimizer) {
  for (auto& parameter : model.parameters()) {
    parameter.mutable_grad() = at::sin(parameter.detach());
  }
  optimizer.step();
}

const StateDictOptions kFull{.full_state_dict = true};

void expect_same(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : b) {
    ASSERT_TRUE(a.contains(name)) << name;
    EXPECT_FALSE(dtensor::is_dtensor(a.at(name))) << name;
    EXPECT_TRUE(at::allclose(a.at(name), tensor, 1e-6, 1e-6)) << name;
  }
}

TEST(StateDictOf, AModelKeepsPlacementsAndMemory) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto model = cut_model(mesh, 1);
    const auto state = get_model_state_dict(*model);
    ASSERT_EQ(state.size(), 4U * 2 + 2);
    EXPECT_EQ(
        dtensor::spec_of(state.at("first.up.weight")).to_string(),
        "[R, S(0)] on dp=2 tp=2");
    EXPECT_EQ(
        dtensor::spec_of(state.at("count")).to_string(), "[R, R] on dp=2 tp=2");
    dtensor::to_local(state.at("first.up.weight")).fill_(-1);
    EXPECT_TRUE(
        dtensor::to_local(model->first->up->weight).eq(-1).all().item<bool>());
    EXPECT_FALSE(get_model_state_dict(*model, {.ignore = {"angles"}})
                     .contains("angles"));
  });
}

TEST(StateDictOf, FullTensorsAreCopiesOfTheWhole) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto model = cut_model(mesh, 1);
    const auto expected = get_model_state_dict(Model(1));
    expect_same(get_model_state_dict(*model, kFull), expected);
    const auto full = get_model_state_dict(*model, kFull);
    for (const auto& [name, tensor] : full) {
      at::Tensor(tensor).fill_(77);
    }
    expect_same(get_model_state_dict(*model, kFull), expected);

    const auto offloaded = get_model_state_dict(
        *model, {.full_state_dict = true, .cpu_offload = true});
    if (self.rank == 0) {
      expect_same(offloaded, expected);
    } else {
      EXPECT_THAT(offloaded, IsEmpty());
    }
    const auto parts = get_model_state_dict(*model, {.cpu_offload = true});
    const auto& part = parts.at("second.down.weight");
    dtensor::to_local(part).fill_(5);
    expect_same(get_model_state_dict(*model, kFull), expected);
  });
}

TEST(StateDictOf, FrozenParametersAndSubmodulesAreChosen) {
  auto model = std::make_shared<Model>(1);
  model->first->up->weight.requires_grad_(false);
  const auto trained =
      get_model_state_dict(*model, {.ignore_frozen_params = true});
  EXPECT_FALSE(trained.contains("first.up.weight"));
  EXPECT_TRUE(trained.contains("first.up.bias"));
  // What was got so can be set so.
  const auto keys =
      set_model_state_dict(*model, trained, {.ignore_frozen_params = true});
  EXPECT_THAT(keys.missing_keys, IsEmpty());

  const auto kept = get_model_state_dict(*model, {}, {model->second.get()});
  EXPECT_EQ(kept.size(), 4U);
  EXPECT_TRUE(kept.contains("second.down.bias"));
  const StateDictOptions bare{.keep_submodule_prefixes = false};
  const auto inner = get_model_state_dict(*model, bare, {model->second.get()});
  EXPECT_TRUE(
      at::equal(inner.at("down.bias"), model->second->down->bias.detach()));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        get_model_state_dict(
            *model, bare, {model->first.get(), model->second.get()});
      }),
      AllOf(HasSubstr("down.bias"), HasSubstr("keep_submodule_prefixes")));
  const Block other;
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { get_model_state_dict(*model, {}, {&other}); }),
      HasSubstr("not a submodule of the module"));
}

TEST(StateDictOf, AModelTakesWholeAndShardedTensorsPlacedAnyhow) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const Model source(7);
    const auto whole = get_model_state_dict(source);
    StateDict rows;
    for (const auto& [name, tensor] : whole) {
      rows[name] = dtensor::distribute_tensor(
          tensor.clone(),
          mesh,
          {tensor.dim() > 0 ? Shard(0) : Replicate(), Replicate()},
          std::nullopt);
    }
    for (const auto& state : {whole, rows}) {
      const auto model = cut_model(mesh, 1);
      const auto before = model->first->up->weight._version();
      const auto keys = set_model_state_dict(*model, state, kFull);
      EXPECT_THAT(keys.missing_keys, IsEmpty());
      EXPECT_THAT(keys.unexpected_keys, IsEmpty());
      expect_same(get_model_state_dict(*model, kFull), whole);
      EXPECT_GT(model->first->up->weight._version(), before);
    }
  });
}

TEST(StateDictOf, WhatDoesNotFitIsListed) {
  Model model(1);
  auto state = get_model_state_dict(Model(2));
  state.erase("first.up.bias");
  state["extra"] = at::ones({2});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { set_model_state_dict(model, state); }),
      AllOf(
          HasSubstr("1 tensor is missing: \"first.up.bias\""),
          HasSubstr("1 tensor is unexpected: \"extra\""),
          HasSubstr("strict = false")));
  expect_same(get_model_state_dict(model), get_model_state_dict(Model(1)));
  const auto keys = set_model_state_dict(model, state, {.strict = false});
  EXPECT_THAT(keys.missing_keys, ElementsAre("first.up.bias"));
  EXPECT_THAT(keys.unexpected_keys, ElementsAre("extra"));
  EXPECT_TRUE(at::equal(
      model.first->up->bias.detach(), Model(1).first->up->bias.detach()));
  EXPECT_TRUE(at::equal(
      model.second->up->bias.detach(), Model(2).second->up->bias.detach()));
  // Another shape is refused, strict or not, as by load_state_dict().
  state["first.up.weight"] = at::ones({10, 7});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { set_model_state_dict(model, state, {.strict = false}); }),
      HasSubstr("\"first.up.weight\" [10, 7] given vs [10, 6] to fill"));
  state["first.up.weight"] = at::Tensor();
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { set_model_state_dict(model, state, {.strict = false}); }),
      HasSubstr("\"first.up.weight\" has no values"));
}

TEST(StateDictOf, RankZeroGivesToAll) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const StateDictOptions from_first{
        .full_state_dict = true, .broadcast_from_rank0 = true};
    const auto source = std::make_shared<Model>(50);
    const auto optimizer = adam(*source, 0.3);
    train(*source, *optimizer);
    StateDict model_state;
    StateDict optimizer_state;
    if (self.rank == 0) {
      std::tie(model_state, optimizer_state) =
          get_state_dict(*source, {optimizer.get()});
    }
    const auto model = cut_model(mesh, 1);
    const auto cut_optimizer = adam(*model, 0.1);
    set_state_dict(
        *model,
        {cut_optimizer.get()},
        model_state,
        optimizer_state,
        from_first);
    const auto [got_model, got_optimizer] =
        get_state_dict(*model, {cut_optimizer.get()}, kFull);
    expect_same(got_model, get_model_state_dict(*source));
    expect_same(
        got_optimizer, get_optimizer_state_dict(*source, {optimizer.get()}));
    EXPECT_EQ(cut_optimizer->param_groups()[0].options().get_lr(), 0.3);

    // What only rank 0 can know reaches all, and nothing changes.
    if (self.rank == 0) {
      model_state.erase("count");
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { set_model_state_dict(*model, model_state, from_first); }),
        HasSubstr("1 tensor is missing: \"count\""));
    StateDict cut = self.rank == 0 ? get_model_state_dict(*model) : StateDict();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { set_model_state_dict(*model, cut, from_first); }),
        AllOf(HasSubstr("is a DTensor"), HasSubstr("(rank 0)")));
    // And who forgets to say so does not wait forever.
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { set_model_state_dict(*model, model_state, kFull); }),
        HasSubstr("broadcast_from_rank0"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          set_model_state_dict(
              *model, model_state, {.broadcast_from_rank0 = true});
        }),
        HasSubstr("full_state_dict"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { set_model_state_dict(*source, model_state, from_first); }),
        HasSubstr("StateDictOptions.mesh"));
  });
}

TEST(StateDictOf, OptimizersGoOnExactly) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({1, 2}, {"dp", "tp"});
    const auto model = cut_model(mesh, 1);
    const auto optimizer = adam(*model, 0.1);
    train(*model, *optimizer);
    const auto full =
        get_optimizer_state_dict(*model, {optimizer.get()}, kFull);
    EXPECT_TRUE(full.contains("state.first.up.weight.exp_avg"));
    EXPECT_EQ(full.at("state.first.up.weight.exp_avg").size(0), 10);
    EXPECT_EQ(full.at("state.second.down.bias.step").item<int64_t>(), 1);
    EXPECT_EQ(full.at("param_groups.second.down.bias.lr").item<double>(), 0.1);
    const auto weights = get_model_state_dict(*model, kFull);
    train(*model, *optimizer);

    const auto again = cut_model(mesh, 0);
    const auto other = adam(*again, 0.5);
    set_model_state_dict(*again, weights, kFull);
    set_optimizer_state_dict(*again, {other.get()}, full, kFull);
    train(*again, *other);
    const auto expected = get_model_state_dict(*model, kFull);
    for (const auto& [name, tensor] : get_model_state_dict(*again, kFull)) {
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
    }

    auto partial = full;
    partial.erase("state.first.up.weight.exp_avg");
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          set_optimizer_state_dict(*again, {other.get()}, partial, kFull);
        }),
        HasSubstr("\"state.first.up.weight.exp_avg\""));
    const auto keys = set_optimizer_state_dict(
        *again,
        {other.get()},
        partial,
        {.full_state_dict = true, .strict = false});
    EXPECT_THAT(
        keys.missing_keys, ElementsAre("state.first.up.weight.exp_avg"));
  });
}

TEST(StateDictOf, SeveralOptimizersShareAModel) {
  Model model(1);
  torch::optim::SGD sgd(
      model.first->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  AdamW adamw(model.second->parameters(), torch::optim::AdamWOptions(0.2));
  auto state = get_optimizer_state_dict(model, {&sgd, &adamw});
  EXPECT_TRUE(state.contains("state.first.up.weight.momentum_buffer"));
  EXPECT_TRUE(state.contains("state.second.up.weight.exp_avg_sq"));
  for (auto& [key, value] : state) {
    if (key.starts_with("param_groups.second.") && key.ends_with(".lr")) {
      value = at::full({}, 0.7, at::kDouble);
    }
  }
  set_optimizer_state_dict(model, {&sgd, &adamw}, state);
  EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.7);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        AdamW all(model.parameters());
        get_optimizer_state_dict(model, {&sgd, &all});
      }),
      HasSubstr("two optimizers have"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { get_optimizer_state_dict(model, {}); }),
      HasSubstr("no optimizer"));
}

// The state of an optimizer that is divided over the replicas, as everybody
// else's.
TEST(StateDictOf, ADividedOptimizerIsOneOfThem) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto model = cut_model(mesh, 1);
    const auto plain = adam(*model, 0.1);
    train(*model, *plain);
    const auto expected =
        get_optimizer_state_dict(*model, {plain.get()}, kFull);
    const auto sharded = get_optimizer_state_dict(*model, {plain.get()});

    for (const auto& state : {expected, sharded}) {
      const auto zero = ddp::make_zero<AdamW>(
          model->parameters(), torch::optim::AdamWOptions(0.9), mesh["dp"]);
      set_optimizer_state_dict(*model, {zero.get()}, state, kFull);
      expect_same(
          get_optimizer_state_dict(*model, {zero.get()}, kFull), expected);
      EXPECT_EQ(zero->param_groups()[0].options().get_lr(), 0.1);
    }
  });
}

// From a run on four ranks through files to one plain model on one rank.
TEST(StateDictOf, WhatIsSavedLoadsIntoWhatIsGot) {
  test::TempFolder scratch;
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto model = cut_model(mesh, 9);
    const auto optimizer = adam(*model, 0.1);
    train(*model, *optimizer);
    const auto [weights, moments] = get_state_dict(*model, {optimizer.get()});
    save(
        scratch.path(),
        {{"model", weights}, {"optimizer", moments}},
        {.step = 1, .fsync = false});
  });
  Model model(0);
  const auto optimizer = adam(model, 0.5);
  auto [weights, moments] = get_state_dict(model, {optimizer.get()});
  load(scratch.path() / "step-1", {{"model", weights}, {"optimizer", moments}});
  set_optimizer_state_dict(model, {optimizer.get()}, moments);
  Model expected(9);
  const auto expected_optimizer = adam(expected, 0.1);
  train(expected, *expected_optimizer);
  expect_same(get_model_state_dict(model), get_model_state_dict(expected));
  expect_same(
      get_optimizer_state_dict(model, {optimizer.get()}),
      get_optimizer_state_dict(expected, {expected_optimizer.get()}));
}

} // namespace
} // namespace weft::checkpoint
