// Showing a DTensor never throws, reads no other rank's part, and leaves plain
// tensors to libtorch.

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/print.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::test::RankContext;
using weft::test::run_ranks;

std::string streamed(const at::Tensor& tensor) {
  std::ostringstream stream;
  stream << tensor;
  return stream.str();
}

at::Tensor sequence(std::vector<int64_t> sizes) {
  int64_t count = 1;
  for (const auto size : sizes) {
    count *= size;
  }
  return at::arange(count, at::kFloat).view(sizes);
}

TEST(Print, ShowsTheSpecAndThisRanksValues) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto x = distributed(sequence({4, 2}), mesh, {Shard(0)});
    const auto text = streamed(x);
    EXPECT_THAT(
        text,
        AllOf(
            HasSubstr(c10::str(
                "DTensor [4, 2] Float [S(0)] on tp=2, local [2, 2] on rank ",
                self.rank,
                "\n")),
            HasSubstr(self.rank == 0 ? " 2  3" : " 6  7"),
            Not(HasSubstr(self.rank == 0 ? "6" : " 0  1"))));
    EXPECT_EQ(to_string(x), text);
    EXPECT_EQ(::testing::PrintToString(x), text);
    EXPECT_EQ(c10::str(x), text);
  });
}

TEST(Print, WhatHasNoValuesOrDimsIsShownToo) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto show = [&](const at::Tensor& whole, Placement placement) {
      return streamed(distributed(whole, mesh, {placement}));
    };
    EXPECT_THAT(show(sequence({1, 3}), Shard(0)), HasSubstr("DTensor [1, 3]"));
    EXPECT_THAT(show(at::ones({}), Partial()), HasSubstr("DTensor [] Float"));
    EXPECT_THAT(show(sequence({2, 2, 2}), Shard(1)), HasSubstr("[S(1)]"));
    EXPECT_THAT(
        show(at::ones({2}, at::kDouble), Replicate()), HasSubstr("Double"));
    auto leaf = distributed(sequence({2}).requires_grad_(), mesh, {Shard(0)});
    EXPECT_THAT(streamed(leaf * 2), HasSubstr("DTensor [2]"));
    const c10::InferenceMode inference;
    EXPECT_THAT(show(sequence({2}), Shard(0)), HasSubstr("DTensor [2]"));
  });
}

TEST(Print, DeferredTensorsHaveNoValuesYet) {
  at::Tensor weight;
  {
    const DeferredInit scope;
    weight = torch::randn({1 << 20, 1 << 10});
    EXPECT_THAT(streamed(weight), HasSubstr("materialize()"));
  }
  EXPECT_THAT(streamed(weight), HasSubstr("DTensor [1048576, 1024]"));
}

TEST(Print, PlainTensorsLookAsTheyDo) {
  EXPECT_EQ(streamed(sequence({2, 2})), " 0  1\n 2  3\n[ CPUFloatType{2,2} ]");
  EXPECT_EQ(streamed(at::Tensor()), "[ Tensor (undefined) ]");
}

} // namespace
} // namespace weft::dtensor
