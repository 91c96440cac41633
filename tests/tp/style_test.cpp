// What the styles compute and send, against the same modules on one rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "dtensor/scopes/scopes.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"

namespace weft::tp {
namespace {

using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using Counts = std::map<std::string, int64_t>;

/// Collectives by kind since the last call; uneven ones count as their kind.
Counts take_counts(const mesh::DeviceMesh& mesh) {
  Counts counts;
  auto& flight_recorder = mesh.group(0).flight_recorder();
  for (const auto& [op, count] : flight_recorder.counts()) {
    const auto suffix = op.rfind("_uneven");
    counts[op.substr(0, suffix)] += count;
  }
  flight_recorder.reset();
  return counts;
}

// Number of ranks.
class Styles : public ::testing::TestWithParam<int> {
 protected:
  template <class Body>
  void run(const Body& body) {
    run_ranks(GetParam(), [&](RankContext& self) {
      body(self.mesh({GetParam()}, {"tp"}));
    });
  }
  /// `counts`, or nothing on one rank.
  static Counts if_many(Counts counts) {
    return GetParam() == 1 ? Counts() : counts;
  }
};

struct Mlp : torch::nn::Module {
  Mlp()
      : up(register_module("up", torch::nn::Linear(6, 7))),
        down(register_module("down", torch::nn::Linear(7, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
  torch::nn::Linear up, down;
};

// 7 hidden features on 4 ranks: 2, 2, 2, 1.
TEST_P(Styles, ColwiseThenRowwiseIsOneMlp) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto mlp = make_parallel<Mlp>(
        mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    auto alone = plain_copy(*mlp);
    const auto x = wave({2, 3, 6}).requires_grad_();
    const auto x_alone = wave({2, 3, 6}).requires_grad_();
    take_counts(mesh);
    const auto y = mlp->forward(x);
    EXPECT_EQ(take_counts(mesh), if_many({{"all_reduce", 1}}));
    const auto expected = alone->forward(x_alone);
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Replicate()));
    EXPECT_EQ(y.strides(), expected.strides());
    expect_close(y, expected, "output");
    loss_of(y).backward();
    EXPECT_EQ(take_counts(mesh), if_many({{"all_reduce", 1}}));
    loss_of(expected).backward();
    expect_same_gradients(*mlp, *alone);
    expect_close(x.grad(), x_alone.grad(), "input gradient");
  });
}

TEST_P(Styles, ShardsAreUneven) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto mlp = make_parallel<Mlp>(
        mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    const int64_t own =
        dtensor::shard_range(7, mesh.size(), mesh.coordinate("tp")).length;
    const auto local_sizes = [](const at::Tensor& parameter) {
      return dtensor::to_local(parameter).sizes().vec();
    };
    EXPECT_THAT(local_sizes(mlp->up->weight), ElementsAre(own, 6));
    EXPECT_THAT(local_sizes(mlp->up->bias), ElementsAre(own));
    EXPECT_THAT(local_sizes(mlp->down->weight), ElementsAre(5, own));
    EXPECT_THAT(local_sizes(mlp->down->bias), ElementsAre(5));
  });
}

template <bool kHasBias>
struct One : torch::nn::Module {
  One()
      : linear(register_module(
            "linear",
            torch::nn::Linear(
                torch::nn::LinearOptions(12, 24).bias(kHasBias)))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};

template <bool kHasBias>
void check_layouts(
    const mesh::DeviceMesh& mesh,
    const ParallelStyle& style,
    Placement input,
    Placement output) {
  const auto x = wave({12, 12, 12});
  auto module = make_parallel<One<kHasBias>>(mesh, {{"linear", style}});
  auto alone = plain_copy(*module);
  const auto part = local_leaf(x, mesh, input);
  const auto y = module->forward(part);
  EXPECT_THAT(
      dtensor::spec_of(y).placements(), ElementsAre(output.normalized(3)));
  const auto x_alone = x.clone().requires_grad_();
  const auto expected = alone->forward(x_alone);
  expect_close(y, expected, "output");
  loss_of(y).backward();
  loss_of(expected).backward();
  expect_same_gradients(*module, *alone);
  expect_close(
      part.grad(), local_leaf(x_alone.grad(), mesh, input), "input gradient");
}

// A plain input is a part that is placed as input_layouts say.
TEST_P(Styles, LayoutsOfInputsAndOutputs) {
  run([&](const mesh::DeviceMesh& mesh) {
    for (const auto& input : {Replicate(), Shard(0), Shard(1), Shard(-1)}) {
      for (const auto& output : {Replicate(), Shard(0), Shard(1), Shard(-1)}) {
        SCOPED_TRACE(input.to_string() + " " + output.to_string());
        const LayoutOptions layouts{input, output};
        check_layouts<true>(mesh, ColwiseParallel(layouts), input, output);
        check_layouts<true>(mesh, RowwiseParallel(layouts), input, output);
      }
      const LayoutOptions pending{input, Partial()};
      check_layouts<false>(mesh, RowwiseParallel(pending), input, Partial());
    }
  });
}

// Two dims take libtorch another way than three.
TEST_P(Styles, InputsOfAnyDims) {
  run([&](const mesh::DeviceMesh& mesh) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{6}, {3, 6}, {2, 1, 2, 6}}) {
      auto mlp = make_parallel<Mlp>(
          mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
      auto alone = plain_copy(*mlp);
      take_counts(mesh);
      const auto y = mlp->forward(wave(sizes));
      EXPECT_EQ(take_counts(mesh), if_many({{"all_reduce", 1}}));
      const auto expected = alone->forward(wave(sizes));
      expect_close(y, expected, "output");
      loss_of(y).backward();
      loss_of(expected).backward();
      expect_same_gradients(*mlp, *alone);
    }
  });
}

TEST_P(Styles, WithoutAutograd) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto mlp = make_parallel<Mlp>(
        mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    auto alone = plain_copy(*mlp);
    const auto x = wave({2, 3, 6});
    const auto expected = alone->forward(x).detach();
    take_counts(mesh);
    {
      const at::NoGradGuard no_grad;
      expect_close(mlp->forward(x), expected, "no_grad");
    }
    EXPECT_EQ(take_counts(mesh), if_many({{"all_reduce", 1}}));
    const c10::InferenceMode inference;
    expect_close(mlp->forward(x.clone()), expected, "inference");
    EXPECT_EQ(take_counts(mesh), if_many({{"all_reduce", 1}}));
  });
}

// A DTensor is moved to where the style wants it, wherever it lies.
TEST_P(Styles, DTensorInputsAreRedistributed) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto module = make_parallel<One<true>>(
        mesh, {{"linear", ColwiseParallel({.input_layouts = Shard(1)})}});
    auto alone = plain_copy(*module);
    const auto x = wave({2, 5, 12});
    for (const auto& placement : {Replicate(), Shard(0), Shard(1), Shard(2)}) {
      const auto placed =
          dtensor::distribute_tensor(x, mesh, {placement}, std::nullopt);
      expect_close(
          module->forward(placed), alone->forward(x), placement.to_string());
    }
  });
}

struct Lookup : torch::nn::Module {
  Lookup()
      : table(register_module(
            "table",
            torch::nn::Embedding(
                torch::nn::EmbeddingOptions(7, 5).padding_idx(2)))) {}
  at::Tensor forward(const at::Tensor& tokens) { return table(tokens); }
  torch::nn::Embedding table;
};

TEST_P(Styles, EmbeddingsAreCutByVocabularyOrByFeature) {
  run([&](const mesh::DeviceMesh& mesh) {
    const auto tokens = at::arange(15).remainder(7).view({3, 5});
    const std::vector<std::pair<ParallelStyle, Placement>> cases{
        {RowwiseParallel(), Replicate()},
        {RowwiseParallel({.output_layouts = Shard(1)}), Shard(1)},
        {RowwiseParallel({.output_layouts = Partial()}), Partial()},
        {ColwiseParallel(), Shard(2)},
        {ColwiseParallel({.output_layouts = Replicate()}), Replicate()},
        {ColwiseParallel({.output_layouts = Shard(1)}), Shard(1)}};
    for (const auto& [style, output] : cases) {
      auto lookup = make_parallel<Lookup>(mesh, {{"table", style}});
      auto alone = plain_copy(*lookup);
      const auto y = lookup->forward(tokens);
      EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(output));
      expect_close(y, alone->forward(tokens), "output");
      loss_of(y).backward();
      loss_of(alone->forward(tokens)).backward();
      expect_same_gradients(*lookup, *alone);
    }
  });
}

TEST_P(Styles, ATokenOutsideTheVocabularyIsRefusedByAllRanks) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto lookup = make_parallel<Lookup>(mesh, {{"table", RowwiseParallel()}});
    if (mesh.size() > 1) {
      EXPECT_THAT(
          test::message_of_thrown<c10::IndexError>(
              [&] { lookup->forward(at::full({1}, 7, at::kLong)); }),
          HasSubstr("[embedding] indices: got 7 to 7, expected 0 to 6"));
    }
  });
}

/// A pre-norm block with a residual stream.
struct Block : torch::nn::Module {
  Block()
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        mlp(register_module("mlp", std::make_shared<Wide>())) {}
  struct Wide : torch::nn::Module {
    Wide()
        : up(register_module("up", torch::nn::Linear(6, 7))),
          gate(register_module("gate", torch::nn::Linear(6, 7))),
          down(register_module("down", torch::nn::Linear(7, 6))) {}
    at::Tensor forward(const at::Tensor& x) {
      const auto gated = at::sigmoid(gate(x));
      return down(gated * up(x));
    }
    torch::nn::Linear up, gate, down;
  };
  at::Tensor forward(const at::Tensor& x) { return x + mlp->forward(norm(x)); }
  torch::nn::LayerNorm norm;
  std::shared_ptr<Wide> mlp;
};

ParallelizePlan sequence_plan(int64_t dim) {
  const auto columns = ColwiseParallel({.input_layouts = Shard(dim)});
  return {
      {"norm", SequenceParallel(dim)},
      {"mlp.up", columns},
      {"mlp.gate", columns},
      {"mlp.down", RowwiseParallel({.output_layouts = Shard(dim)})}};
}

// 5 positions on 4 ranks: 2, 2, 1, 0.
TEST_P(Styles, SequenceParallelNormsSumTheirGradientsOverTheMesh) {
  for (const int64_t dim : {0, 1}) {
    run([&](const mesh::DeviceMesh& mesh) {
      auto block = make_parallel<Block>(mesh, sequence_plan(dim));
      auto alone = plain_copy(*block);
      const auto x = wave({5, 5, 6});
      const auto placed =
          dtensor::distribute_tensor(x, mesh, {Shard(dim)}, std::nullopt);
      for (int backward = 0; backward < 2; ++backward) {
        take_counts(mesh);
        const auto y = block->forward(placed);
        // up and gate share one gather.
        EXPECT_EQ(
            take_counts(mesh),
            if_many({{"all_gather", 1}, {"reduce_scatter", 1}}));
        EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(dim)));
        const auto expected = alone->forward(x);
        expect_close(y, expected, "output");
        const auto loss = loss_of(y);
        take_counts(mesh);
        loss.backward();
        // The gradients of the norm and of down's bias in one sum.
        const auto counts = take_counts(mesh);
        EXPECT_EQ(
            counts,
            if_many(
                {{"all_gather", 1},
                 {"reduce_scatter", 1},
                 {"all_reduce_coalesced", 1}}));
        loss_of(expected).backward();
        expect_same_gradients(*block, *alone);
      }
    });
  }
}

// A norm cuts a whole input by itself.
TEST_P(Styles, WhatTheyAskForIsExplicit) {
  for (const int64_t dim : {0, 1}) {
    run([&](const mesh::DeviceMesh& mesh) {
      auto block = make_parallel<Block>(mesh, sequence_plan(dim));
      const auto placed = dtensor::distribute_tensor(
          wave({5, 5, 6}), mesh, {Shard(dim)}, std::nullopt);
      const dtensor::ExplicitRedistribution scope;
      const auto y = block->forward(placed);
      EXPECT_NO_THROW(y.square().sum().backward());
    });
  }
}

TEST_P(Styles, SequenceParallelCutsAWholeInput) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_parallel<Block>(mesh, sequence_plan(1));
    auto alone = plain_copy(*block);
    const auto x = wave({2, 5, 6}).requires_grad_();
    const auto x_alone = wave({2, 5, 6}).requires_grad_();
    const auto y = block->norm(dtensor::from_local(x, mesh, {Replicate()}));
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(1)));
    const auto expected = alone->norm(x_alone);
    expect_close(y, expected, "output");
    loss_of(y).backward();
    loss_of(expected).backward();
    expect_close(x.grad(), x_alone.grad(), "input gradient");
    expect_close(
        block->norm->weight.grad(), alone->norm->weight.grad(), "weight");
  });
}

/// Doubles and remembers where its input lay.
struct Double : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    seen = dtensor::spec_of(x).placements();
    return x * 2;
  }
  Placements seen;
};

struct Outer : torch::nn::Module {
  Outer() : inner(register_module("inner", std::make_shared<Double>())) {}
  at::Tensor forward(const at::Tensor& x) { return dtensor::call(inner, x); }
  std::shared_ptr<Double> inner;
};

TEST_P(Styles, PrepareModuleInputAndOutputActOnCalls) {
  run([&](const mesh::DeviceMesh& mesh) {
    const auto outer = make_parallel<Outer>(
        mesh,
        {{"inner",
          PrepareModuleInput(
              {.input_layouts = Shard(0),
               .desired_input_layouts = Replicate()})},
         {"inner",
          PrepareModuleOutput(
              {.output_layouts = Replicate(),
               .desired_output_layouts = Shard(-1)})}});
    const auto x = wave({12, 5});
    const auto part = local_leaf(x, mesh, Shard(0));
    const auto y = outer->forward(part);
    EXPECT_THAT(outer->inner->seen, ElementsAre(Replicate()));
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(1)));
    expect_close(y, x * 2, "output");
    loss_of(y).backward();
    const auto x_alone = x.clone().requires_grad_();
    loss_of(x_alone * 2).backward();
    expect_close(
        part.grad(), local_leaf(x_alone.grad(), mesh, Shard(0)), "gradient");

    const auto placed =
        dtensor::distribute_tensor(x, mesh, {Shard(1)}, std::nullopt);
    expect_close(outer->forward(placed), x * 2, "DTensor");
    EXPECT_THAT(outer->inner->seen, ElementsAre(Replicate()));
    EXPECT_THAT(outer->parameters(), IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Styles,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::tp
