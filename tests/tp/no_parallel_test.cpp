// Modules that stay whole among cut ones, and parameters that are frozen.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"

namespace weft::tp {
namespace {

using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Routes tokens: its logits need the whole sequence where they are used.
struct Router : torch::nn::Module {
  Router()
      : gate(register_module("gate", torch::nn::Linear(6, 4))),
        table(register_module("table", torch::nn::Embedding(9, 6))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))) {}
  at::Tensor forward(const at::Tensor& x) {
    seen = dtensor::spec_of(x).placements();
    return at::tanh(x);
  }
  torch::nn::Linear gate;
  torch::nn::Embedding table;
  torch::nn::LayerNorm norm;
  Placements seen;
};

class NoParallelStyle : public ::testing::TestWithParam<int> {
 protected:
  template <class Body>
  void run(const Body& body) {
    run_ranks(GetParam(), [&](RankContext& self) {
      body(self.mesh({GetParam()}, {"tp"}));
    });
  }
};

// A module with one option set against one rank, for an input that lies along
// `from` as a plain part or as a DTensor.
template <class Forward>
void check_whole(
    const mesh::DeviceMesh& mesh,
    const std::string& name,
    const at::Tensor& whole,
    Placement from,
    const NoParallelOptions& options,
    const Placements& output,
    const Forward& forward) {
  SCOPED_TRACE(name);
  for (const bool plain : {true, false}) {
    const auto module =
        make_parallel<Router>(mesh, {{name, NoParallel(options)}});
    const auto alone = plain_copy(*module);
    const auto placed =
        dtensor::distribute_tensor(whole, mesh, {from}, std::nullopt);
    const auto y =
        forward(*module, plain ? dtensor::to_local(placed).clone() : placed);
    const auto expected = forward(*alone, whole);
    if (options.use_local_output) {
      ASSERT_FALSE(dtensor::is_dtensor(y));
      expect_close(y, expected, "output");
    } else {
      EXPECT_EQ(dtensor::spec_of(y).placements(), output);
      expect_close(y, expected, "output");
    }
    loss_of(y).backward();
    loss_of(expected).backward();
    const auto gradients = alone->named_parameters();
    for (const auto& item : module->named_parameters()) {
      if (gradients[item.key()].grad().defined()) {
        expect_close(
            item.value().grad(), gradients[item.key()].grad(), item.key());
      }
    }
  }
}

TEST_P(NoParallelStyle, ModulesAreWholeOnEveryRank) {
  run([](const mesh::DeviceMesh& mesh) {
    const auto x = wave({12, 12, 6});
    const auto tokens = at::arange(24).remainder(9).view({2, 12});
    const auto gate = [](Router& router, const at::Tensor& input) {
      return dtensor::call(router.gate, input);
    };
    const auto table = [](Router& router, const at::Tensor& input) {
      return dtensor::call(router.table, input);
    };
    const auto norm = [](Router& router, const at::Tensor& input) {
      return dtensor::call(router.norm, input);
    };
    const NoParallelOptions gathered{.input_layout = Shard(1)};
    const NoParallelOptions back{
        .input_layout = Shard(1), .output_layout = Shard(1)};
    const NoParallelOptions stays{
        .input_layout = Shard(1),
        .output_layout = Shard(1),
        .desired_input_layout = Shard(1)};
    const NoParallelOptions local{
        .input_layout = Shard(1), .use_local_output = true};
    for (const auto& [options, output] :
         {std::pair(gathered, Replicate()),
          std::pair(back, Shard(1)),
          std::pair(stays, Shard(1)),
          std::pair(local, Replicate())}) {
      check_whole(mesh, "gate", x, Shard(1), options, {output}, gate);
      check_whole(mesh, "table", tokens, Shard(1), options, {output}, table);
      check_whole(mesh, "norm", x, Shard(1), options, {output}, norm);
    }
    check_whole(mesh, "gate", x, Replicate(), {}, {Replicate()}, gate);
  });
}

TEST_P(NoParallelStyle, GathersOnceAndReducesNothing) {
  run([](const mesh::DeviceMesh& mesh) {
    const auto module = make_parallel<Router>(
        mesh, {{"gate", NoParallel({.input_layout = Shard(1)})}});
    const auto x = dtensor::distribute_tensor(
        wave({2, 12, 6}), mesh, {Shard(1)}, std::nullopt);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    flight_recorder.reset();
    const auto y = module->gate(x);
    const auto counts = flight_recorder.counts();
    if (mesh.size() > 1) {
      EXPECT_EQ(counts.size(), 1);
      EXPECT_EQ(counts.begin()->second, 1);
    }
    flight_recorder.reset();
    // The gradient is replicated.
    y.square().sum().backward();
    EXPECT_THAT(flight_recorder.counts(), IsEmpty());
  });
}

struct Routed : torch::nn::Module {
  Routed() : router(register_module("router", std::make_shared<Router>())) {}
  at::Tensor forward(const at::Tensor& x) { return dtensor::call(router, x); }
  std::shared_ptr<Router> router;
};

TEST_P(NoParallelStyle, OtherModulesWhereTheyAreCalled) {
  run([](const mesh::DeviceMesh& mesh) {
    const auto x = wave({12, 6});
    const auto placed =
        dtensor::distribute_tensor(x, mesh, {Shard(0)}, std::nullopt);
    const auto run_with = [&](const NoParallelOptions& options) {
      const auto routed =
          make_parallel<Routed>(mesh, {{"router", NoParallel(options)}});
      const auto y = routed->forward(dtensor::to_local(placed).clone());
      expect_close(routed->forward(placed), whole(y), "DTensor");
      EXPECT_THAT(routed->router->seen, ElementsAre(Replicate()));
      return y;
    };
    const auto y =
        run_with({.input_layout = Shard(0), .output_layout = Shard(1)});
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(1)));
    expect_close(y, at::tanh(x), "output");
    const auto local =
        run_with({.input_layout = Shard(0), .use_local_output = true});
    EXPECT_FALSE(dtensor::is_dtensor(local));
    expect_close(local, at::tanh(x), "local output");
  });
}

struct Dropped : torch::nn::Module {
  Dropped() : dropout(register_module("dropout", torch::nn::Dropout(0.5))) {}
  at::Tensor forward(const at::Tensor& x) { return dtensor::call(dropout, x); }
  torch::nn::Dropout dropout;
};

// A module without weights gets hooks, and drops the same elements anywhere.
TEST_P(NoParallelStyle, SequenceParallelDropout) {
  run([](const mesh::DeviceMesh& mesh) {
    const auto outer =
        make_parallel<Dropped>(mesh, {{"dropout", SequenceParallel()}});
    const auto x = at::ones({2, 12, 6}, at::kDouble);
    const auto placed =
        dtensor::distribute_tensor(x, mesh, {Replicate()}, std::nullopt);
    const auto y = outer->forward(placed);
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(1)));
    const auto values = whole(y);
    EXPECT_TRUE(values.eq(0).logical_or(values.eq(2)).all().item<bool>());
    EXPECT_TRUE(values.eq(0).any().item<bool>());
    EXPECT_TRUE(values.eq(2).any().item<bool>());
    outer->eval();
    expect_close(outer->forward(placed), x, "eval");
  });
}

/// One module of each style.
struct Styled : torch::nn::Module {
  Styled()
      : table(register_module("table", torch::nn::Embedding(9, 6))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))),
        gate(register_module("gate", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    const auto x = table(tokens);
    return gate(x + down(at::tanh(up(norm(x)))));
  }
  torch::nn::Embedding table;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down, gate;
};

ParallelizePlan styled_plan() {
  return {
      {"table", RowwiseParallel({.output_layouts = Shard(1)})},
      {"norm", SequenceParallel()},
      {"up", ColwiseParallel({.input_layouts = Shard(1)})},
      {"down", RowwiseParallel({.output_layouts = Shard(1)})},
      {"gate", NoParallel({.input_layout = Shard(1)})}};
}

std::map<std::string, int64_t> backward_counts(
    const mesh::DeviceMesh& mesh,
    const std::vector<std::string>& frozen,
    const std::string& trained) {
  const auto module = make_parallel<Styled>(mesh, styled_plan());
  const auto alone = plain_copy(*module);
  for (const auto& each : {module, alone}) {
    auto parameters = each->named_parameters();
    for (auto& item : parameters) {
      bool is_frozen = !trained.empty() && item.key() != trained;
      for (const auto& name : frozen) {
        is_frozen |= item.key() == name;
      }
      item.value().requires_grad_(!is_frozen);
    }
  }
  const auto tokens = at::arange(24).remainder(9).view({2, 12});
  const auto loss = loss_of(module->forward(tokens));
  auto& flight_recorder = mesh.group(0).flight_recorder();
  flight_recorder.reset();
  loss.backward();
  std::map<std::string, int64_t> counts;
  for (const auto& [op, count] : flight_recorder.counts()) {
    counts[op] += count;
  }
  loss_of(alone->forward(tokens)).backward();
  const auto expected = alone->named_parameters();
  for (const auto& item : module->named_parameters()) {
    const auto& grad = item.value().grad();
    EXPECT_EQ(grad.defined(), item.value().requires_grad()) << item.key();
    if (grad.defined()) {
      expect_close(grad, expected[item.key()].grad(), item.key());
    }
  }
  return counts;
}

TEST_P(NoParallelStyle, FrozenParametersCostNothing) {
  run([](const mesh::DeviceMesh& mesh) {
    if (mesh.size() == 1) {
      EXPECT_THAT(backward_counts(mesh, {}, ""), IsEmpty());
      return;
    }
    const std::vector<std::string> all{
        "table.weight",
        "norm.weight",
        "norm.bias",
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
        "gate.weight",
        "gate.bias"};
    for (const auto& name : all) {
      SCOPED_TRACE(name);
      backward_counts(mesh, {name}, "");
      backward_counts(mesh, {}, name);
    }
    // The gradients of the norm and of down's bias are one sum; without them
    // there is none.
    const auto full = backward_counts(mesh, {}, "");
    auto none = full;
    none.erase("all_reduce_coalesced");
    EXPECT_NE(none, full);
    EXPECT_EQ(
        backward_counts(mesh, {"norm.weight", "norm.bias", "down.bias"}, ""),
        none);
    // What comes before the last trained layer is not computed.
    EXPECT_THAT(backward_counts(mesh, {}, "gate.weight"), IsEmpty());
    EXPECT_THAT(
        backward_counts(mesh, {}, "down.weight"),
        ElementsAre(::testing::Pair("all_gather", 1)));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    NoParallelStyle,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::tp
