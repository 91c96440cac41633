// What a plan is refused for, before anything is sent or changed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/stack.h"
#include "tp/expert_parallel.h"

namespace weft::tp {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Refusals : public ::testing::Test {
 protected:
  template <class M>
  static void expect_refused(
      const mesh::DeviceMesh& mesh,
      const std::shared_ptr<M>& model,
      const ParallelizePlan& plan,
      const ::testing::Matcher<std::string>& message) {
    mesh.group(0).flight_recorder().reset();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { parallelize_module(*model, mesh, plan); }),
        message);
    EXPECT_THAT(mesh.group(0).flight_recorder().counts(), IsEmpty());
    for (const auto& item : model->named_modules()) {
      EXPECT_EQ(dtensor::find_module_hooks(*item.value()), nullptr);
    }
    for (const auto& item : model->named_parameters()) {
      const auto& tensor = item.value();
      EXPECT_TRUE(
          !dtensor::is_dtensor(tensor) ||
          dtensor::spec_of(tensor).mesh_ndim() == 0)
          << item.key();
    }
  }

  template <class Body>
  static void on_two_ranks(const Body& body) {
    run_ranks(2, [&](RankContext& self) { body(self.mesh({2}, {"tp"})); });
  }
};

TEST_F(Refusals, StylesThatContradictEachOther) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    expect_refused(
        mesh,
        deferred<Stack>(),
        {{"first.up", ColwiseParallel()}, {"*.up", RowwiseParallel()}},
        HasSubstr("[parallelize_module] \"first.up\" and \"*.up\" give module "
                  "\"first.up\" ColwiseParallel and RowwiseParallel, which "
                  "both place its parameters. Keep one."));
    expect_refused(
        mesh,
        std::make_shared<Stack>(),
        {{"first.up", ColwiseParallel()}, {"first.*", ColwiseParallel()}},
        HasSubstr("ColwiseParallel and ColwiseParallel, which both place"));
    const auto input = PrepareModuleInput(
        {.input_layouts = Shard(0), .desired_input_layouts = Replicate()});
    expect_refused(
        mesh,
        deferred<Stack>(),
        {{"first", input},
         {"first",
          PrepareModuleInputOutput(
              {.output_layouts = Shard(0),
               .desired_output_layouts = Replicate()})}},
        HasSubstr("which both prepare its inputs"));
    EXPECT_NO_THROW(parallelize_module(
        *deferred<Stack>(),
        mesh,
        {{"norm", input}, {"norm", SequenceParallel()}}));
  });
}

TEST_F(Refusals, AfterAStyleThatFits) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    expect_refused(
        mesh,
        std::make_shared<Stack>(),
        {{"first.up", ColwiseParallel()}, {"norm", RowwiseParallel()}},
        HasSubstr("[RowwiseParallel] module \"norm\" is a "));
    expect_refused(
        mesh,
        std::make_shared<Stack>(),
        {{"first.up", ColwiseParallel()}, {"frst.down", RowwiseParallel()}},
        HasSubstr("Did you mean \"first.down\"?"));
  });
}

struct Holds : torch::nn::Module {
  template <class Holder>
  explicit Holds(Holder inner) {
    register_module("inner", inner.ptr());
  }
};

TEST_F(Refusals, ModulesThatCannotBeCut) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    const auto refuse = [&](auto inner, const std::string& reason) {
      expect_refused(
          mesh,
          std::make_shared<Holds>(inner),
          {{"inner", ColwiseParallel()}},
          AllOf(
              HasSubstr("[ColwiseParallel] module \"inner\""),
              HasSubstr(reason)));
    };
    using torch::nn::Embedding;
    using torch::nn::EmbeddingOptions;
    refuse(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)),
        "Conv2dImpl, not a Linear or an Embedding");
    refuse(Embedding(EmbeddingOptions(4, 2).sparse(true)), "sparse gradients");
    refuse(Embedding(EmbeddingOptions(4, 2).max_norm(1.0)), "max_norm");
    refuse(
        Embedding(EmbeddingOptions(4, 2).scale_grad_by_freq(true)),
        "scale_grad_by_freq");
    expect_refused(
        mesh,
        std::make_shared<Stack>(),
        {{"first.up", ColwiseParallel()}, {"second", ExpertParallel()}},
        HasSubstr("[ExpertParallel] module \"second\" has no parameters"));
    torch::nn::Linear headless(2, 2);
    headless->weight = at::Tensor();
    refuse(headless, "none vs 2 dims");
  });
}

TEST_F(Refusals, LayoutsThatDoNotFit) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    const auto refuse = [&](const ParallelStyle& style,
                            const std::string& reason) {
      expect_refused(
          mesh,
          std::make_shared<Stack>(),
          {{"second.down", RowwiseParallel()}, {"first.up", style}},
          HasSubstr(reason));
    };
    const Placements two{Replicate(), Shard(0)};
    refuse(
        ColwiseParallel({.input_layouts = two}),
        "module \"first.up\": input_layouts: the number of placements must "
        "equal the number of mesh dims: 2 vs 1");
    refuse(
        ColwiseParallel({.output_layouts = two}), "output_layouts: the number");
    refuse(
        ColwiseParallel({.weight_layouts = two}), "weight_layouts: the number");
    refuse(SequenceParallel({.layouts = two}), "layouts: the number");
    refuse(NoParallel({.output_layout = two}), "output_layout: the number");
    refuse(
        ColwiseParallel({.weight_layouts = Shard(2)}),
        "weight_layouts has S(2), but this style shards the weight");
    refuse(
        ColwiseParallel({.weight_layouts = Replicate()}),
        "does not shard along any mesh dim. Use the NoParallel style");
    refuse(
        ColwiseParallel({.output_layouts = Partial()}),
        "output_layouts P(sum) along mesh dim 0 is not supported");
    refuse(
        RowwiseParallel({.output_layouts = Partial()}),
        "the bias is added only after the reduction");
    refuse(
        PrepareModuleInput({.input_layouts = Shard(0)}),
        "got 1 input_layouts and 0 desired_input_layouts");
    refuse(
        PrepareModuleInput(
            {.input_layouts = two, .desired_input_layouts = two}),
        "input_layouts 0: the number of placements");
    refuse(
        PrepareModuleInput({.input_kwarg_layouts = {{"mask", Shard(0)}}}),
        "input_kwarg_layouts has \"mask\", which desired_input_kwarg_layouts "
        "lacks");
    refuse(
        PrepareModuleInput(
            {.desired_input_kwarg_layouts = {{"mask", Shard(0)}}}),
        "desired_input_kwarg_layouts has \"mask\", which input_kwarg_layouts "
        "lacks");
    refuse(
        PrepareModuleOutput({.desired_output_layouts = {Shard(0), Shard(0)}}),
        "got 0 output_layouts and 2 desired_output_layouts");
  });
}

/// A head that has the embedding's weight.
struct TiedHead : torch::nn::LinearImpl {
  explicit TiedHead(const at::Tensor& tied)
      : LinearImpl(torch::nn::LinearOptions(4, 8).bias(false)) {
    weight = tied;
    parameters_["weight"] = tied;
  }
};
struct Tied : torch::nn::Module {
  Tied()
      : embed(register_module("embed", torch::nn::Embedding(8, 4))),
        head(register_module(
            "head",
            std::make_shared<TiedHead>(embed->weight))) {}
  torch::nn::Embedding embed;
  std::shared_ptr<TiedHead> head;
};

TEST_F(Refusals, ASharedTensorInTwoPlaces) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    expect_refused(
        mesh,
        deferred<Tied>(),
        {{"embed", ColwiseParallel()}, {"head", ColwiseParallel()}},
        HasSubstr("\"embed.weight\" and \"head.weight\" are the same tensor, "
                  "but their styles place it differently: [S(1)] vs [S(0)]"));
    expect_refused(
        mesh,
        std::make_shared<Tied>(),
        {{"embed", RowwiseParallel()}, {"head", ColwiseParallel()}},
        HasSubstr("are the same plain tensor, which would be replaced by two"));
    expect_refused(
        mesh,
        std::make_shared<Tied>(),
        {{"embed", RowwiseParallel()}},
        HasSubstr("are the same plain tensor, which would be replaced by two"));
    EXPECT_NO_THROW(parallelize_module(
        *deferred<Tied>(),
        mesh,
        {{"embed", RowwiseParallel()}, {"head", ColwiseParallel()}}));
    EXPECT_NO_THROW(parallelize_module(
        *deferred<Tied>(), mesh, {{"embed", RowwiseParallel()}}));
  });
}

/// A module that is not libtorch's own.
struct OwnScale : torch::nn::Module {
  OwnScale()
      : up(register_module("up", torch::nn::Linear(4, 4))),
        scale(register_parameter("scale", at::ones({4}))) {}
  torch::nn::Linear up;
  at::Tensor scale;
};

TEST_F(Refusals, ParametersThatCannotBePlaced) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    expect_refused(
        mesh,
        std::make_shared<OwnScale>(),
        {{"up", ColwiseParallel()}},
        HasSubstr("parameter \"scale\" of a "));
    const auto twice = make_parallel<FeedForward>(
        mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          parallelize_module(*twice, mesh, {{"up", RowwiseParallel()}});
        }),
        HasSubstr("already has placements"));
  });
}

// What only a call knows is refused by all ranks, before anything is sent.
TEST_F(Refusals, CallsThatDoNotFit) {
  on_two_ranks([](const mesh::DeviceMesh& mesh) {
    const auto linear = make_parallel<FeedForward>(
        mesh, {{"up", ColwiseParallel({.input_layouts = Shard(5)})}});
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] {
          linear->forward(wave({2, 6}));
        }),
        HasSubstr("5"));
    const auto stack = make_parallel<Stack>(
        mesh,
        {{"first",
          PrepareModuleInput(
              {.input_layouts = {Shard(0), Shard(0)},
               .desired_input_layouts = {Shard(0), Shard(0)}})}});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          dtensor::call(stack->first, wave({2, 6}));
        }),
        HasSubstr("[PrepareModuleInput] module \"first\": got 1 input tensors, "
                  "expected 2, one per entry of input_layouts"));
  });
}

} // namespace
} // namespace weft::tp
