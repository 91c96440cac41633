// Plans: nested ones, and meshes of several dims.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/flight_recorder.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/stack.h"
#include "tp/module_pattern.h"

namespace weft::tp {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NearestNames, KeepTheGlobsThatMatch) {
  const std::vector<std::string> paths{
      "",
      "embed",
      "layers",
      "layers.0",
      "layers.0.attn.q_proj",
      "layers.0.attn.k_proj",
      "layers.1.attn.q_proj"};
  EXPECT_THAT(nearest_names("embd", paths), ElementsAre("embed"));
  EXPECT_THAT(
      nearest_names("layers.*.attn.q_prj", paths),
      ElementsAre("layers.*.attn.q_proj", "layers.*.attn.k_proj"));
  EXPECT_THAT(nearest_names("layer", paths), ElementsAre("layers"));
  EXPECT_THAT(nearest_names("something_else", paths), IsEmpty());
}

Placements placements_of(const at::Tensor& tensor) {
  return dtensor::spec_of(tensor).placements();
}

TEST(Plans, APlanMayBeTheValueOfAPattern) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const ParallelizePlan inner{
        {"up", ColwiseParallel()}, {"down", RowwiseParallel()}};
    for (const auto& plan :
         {ParallelizePlan{{"first", inner}, {"second", inner}},
          ParallelizePlan{
              {"",
               {{"*",
                 {{"up", ColwiseParallel()},
                  {"down", RowwiseParallel()}}}}}}}) {
      const auto stack = deferred<Stack>();
      parallelize_module(*stack, mesh, plan);
      for (const auto& part : {stack->first, stack->second}) {
        EXPECT_THAT(placements_of(part->up->weight), ElementsAre(Shard(0)));
        EXPECT_THAT(placements_of(part->down->weight), ElementsAre(Shard(1)));
      }
      EXPECT_THAT(placements_of(stack->norm->weight), ElementsAre(Replicate()));
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          parallelize_module(
              *deferred<Stack>(),
              mesh,
              {{"first", {{"upp", ColwiseParallel()}}}});
        }),
        AllOf(
            HasSubstr("no module matches \"first.upp\""),
            HasSubstr("Did you mean \"first.up\"?")));
  });
}

TEST(Plans, AStyleAloneIsForTheModuleItself) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    torch::nn::Linear linear(4, 6);
    parallelize_module(*linear, mesh, ColwiseParallel());
    EXPECT_THAT(placements_of(linear->weight), ElementsAre(Shard(0)));
  });
}

TEST(Plans, SourceRank) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto value_with = [&](std::optional<int64_t> source) {
      torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
      {
        const at::NoGradGuard no_grad;
        linear->weight.fill_(static_cast<double>(self.rank));
      }
      mesh.group(0).flight_recorder().reset();
      parallelize_module(
          *linear, mesh, ColwiseParallel(), {.src_data_rank = source});
      const auto sent = mesh.group(0).flight_recorder().counts();
      EXPECT_EQ(sent.empty(), !source.has_value());
      return dtensor::to_local(linear->weight)[0][0].item<double>();
    };
    EXPECT_EQ(value_with(0), 0);
    EXPECT_EQ(value_with(1), 1);
    EXPECT_EQ(value_with(std::nullopt), static_cast<double>(self.rank));
  });
}

// A mesh dim of data parallelism that DTensors know: inputs cut by rows, whole
// weights, whose gradients are summed.
void check_two_dims(
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const Placements& input,
    const Placements& output) {
  auto stack = make_parallel<FeedForward>(mesh, plan);
  auto alone = plain_copy(*stack);
  const auto x = wave({4, 3, 6});
  const auto placed = dtensor::distribute_tensor(x, mesh, input, std::nullopt);
  const auto y = stack->forward(placed);
  const auto expected = alone->forward(x);
  EXPECT_EQ(placements_of(y), output);
  expect_close(y, expected, "output");
  loss_of(y).backward();
  loss_of(expected).backward();
  expect_same_gradients(*stack, *alone);
}

TEST(Plans, MeshesOfTwoDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const Placements columns{Replicate(), Shard(0)};
    const Placements rows{Replicate(), Shard(1)};
    check_two_dims(
        mesh,
        {{"up",
          ColwiseParallel(
              {.input_layouts = Placements{Shard(0), Replicate()},
               .weight_layouts = columns})},
         {"down",
          RowwiseParallel(
              {.input_layouts = Placements{Shard(0), Shard(-1)},
               .weight_layouts = rows})}},
        {Shard(0), Replicate()},
        {Shard(0), Replicate()});
    // Sequence parallelism along the second dim.
    check_two_dims(
        mesh,
        {{"up",
          ColwiseParallel(
              {.input_layouts = Placements{Shard(0), Shard(1)},
               .weight_layouts = columns})},
         {"down",
          RowwiseParallel(
              {.input_layouts = Placements{Shard(0), Shard(-1)},
               .output_layouts = Placements{Shard(0), Shard(1)},
               .weight_layouts = rows})}},
        {Shard(0), Shard(1)},
        {Shard(0), Shard(1)});
    // Cut over all ranks: 7 features are 2, 2, 2, 1.
    check_two_dims(
        mesh,
        {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}},
        {Replicate(), Replicate()},
        {Replicate(), Replicate()});
  });
}

TEST(Plans, SequenceParallelOverTwoDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto stack = make_parallel<Stack>(
        mesh,
        {{"norm",
          SequenceParallel({.layouts = Placements{Shard(0), Shard(1)}})}});
    const auto alone = plain_copy(*stack);
    const auto x = wave({4, 6, 6});
    const auto y = stack->norm(dtensor::from_local(
        dtensor::to_local(dtensor::distribute_tensor(
            x, mesh, {Shard(0), Shard(1)}, std::nullopt)),
        mesh,
        {Shard(0), Shard(1)}));
    EXPECT_THAT(placements_of(y), ElementsAre(Shard(0), Shard(1)));
    loss_of(y).backward();
    const auto expected = alone->norm(x);
    expect_close(y, expected, "output");
    loss_of(expected).backward();
    expect_close(
        stack->norm->weight.grad(), alone->norm->weight.grad(), "gradient");
  });
}

} // namespace
} // namespace weft::tp
