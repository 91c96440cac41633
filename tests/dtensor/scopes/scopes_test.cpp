// What counts as replicated, and what may move, by scope.

#include <thread>

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/parameter_info.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Mode = ExplicitRedistribution::Mode;

// ---- ImplicitReplication
// -----------------------------------------------------

TEST(ImplicitReplicationTest, PlainTensorsCountAsReplicated) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto a = random({4, 6}, 1);
    const auto b = random({6}, 2);
    const auto w = random({5, 6}, 3);
    auto x = distributed(a.clone().requires_grad_(), mesh, {Shard(0)});
    const ImplicitReplication scope;
    const auto sum = x + b;
    EXPECT_EQ(spec_of(sum).placements(), Placements{Shard(0)});
    expect_close(full_tensor(sum), a + b, 0, "below autograd");
    const auto product = torch::linear(x, w);
    expect_close(full_tensor(product), torch::linear(a, w), 1e-12, "above it");
    (sum * b).sum().backward();
    expect_close(full_tensor(x.grad()), b.expand({4, 6}), 1e-12, "gradient");
  });
}

TEST(ImplicitReplicationTest, NestsAndEndsWithItsScope) {
  EXPECT_FALSE(implicit_replication_enabled());
  try {
    const ImplicitReplication outer;
    {
      const ExplicitRedistribution inner;
      EXPECT_TRUE(implicit_replication_enabled());
    }
    EXPECT_TRUE(implicit_replication_enabled());
    EXPECT_EQ(detail::explicit_redistribution(), nullptr);
    throw std::runtime_error("on the way");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(implicit_replication_enabled());
}

TEST(ImplicitReplicationTest, BelongsToItsThreadAndThoseThatInheritItsState) {
  const ImplicitReplication scope;
  const at::ThreadLocalState state;
  bool alone = true;
  bool inherited = false;
  std::thread([&] {
    alone = implicit_replication_enabled();
    const at::ThreadLocalStateGuard guard(state);
    inherited = implicit_replication_enabled();
  }).join();
  EXPECT_FALSE(alone);
  EXPECT_TRUE(inherited);
}

// ---- ExplicitRedistribution
// --------------------------------------------------

TEST(ExplicitRedistributionTest, AnOpThatWouldMoveIsRefusedOnEveryRank) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 6}, 1), mesh, {Shard(1)});
    const ExplicitRedistribution scope;
    // Halves of 4 x 6 doubles come from the other rank.
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { x.cumsum(1).sort(1); }),
        AllOf(
            HasSubstr("[aten::"),
            HasSubstr("DTensor [4, 6] Double [S(1)] on tp=2"),
            HasSubstr("bytes"),
            HasSubstr("Call redistribute(x, ["),
            HasSubstr("rank " + std::to_string(self.rank) + "/2")));
    EXPECT_NO_THROW(x.relu());
    const auto whole = redistribute(x, {kR});
    EXPECT_NO_THROW(whole.sort(1));
    expect_close(full_tensor(x), random({4, 6}, 1), 0, "full_tensor");
  });
}

TEST(ExplicitRedistributionTest, SaysWhatWouldMove) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 6}, 1), mesh, {Shard(1)});
    const auto w = distributed(random({3, 6}, 2), mesh, {kR});
    auto& info = parameter_info(w);
    info.fqn = "proj.weight";
    const ExplicitRedistribution scope;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { torch::linear(x, w); }),
        AllOf(
            HasSubstr("[proj.weight] would redistribute DTensor [4, 6]"),
            HasSubstr("from [S(1)] to [R]: 96 bytes to each rank")));
    // A style that asks for it makes it explicit.
    info.linear.input = Placements{kR};
    expect_close(
        full_tensor(torch::linear(x, w)),
        torch::linear(random({4, 6}, 1), random({3, 6}, 2)),
        1e-12,
        "linear");
  });
}

TEST(ExplicitRedistributionTest, OnlyStrictForbidsWhatMovesNothing) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto cut = distributed(random({4, 6}, 1), mesh, {Shard(0)});
    const auto whole = distributed(random({4, 6}, 2), mesh, {kR});
    {
      const ExplicitRedistribution scope;
      EXPECT_NO_THROW(cut + whole);
    }
    const ExplicitRedistribution scope({.strict = true});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { cut + whole; }),
        HasSubstr("from [R] to [S(0)]: 0 bytes"));
  });
}

TEST(ExplicitRedistributionTest, BackwardOfWhatIsExplicitIsExplicit) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto x = distributed(random({4, 6}, 1).requires_grad_(), mesh, {Shard(1)});
    const ExplicitRedistribution scope;
    const auto y = redistribute(x, {kR}).softmax(1);
    full_tensor(y.square().sum()).backward();
    auto alone = random({4, 6}, 1).requires_grad_();
    alone.softmax(1).square().sum().backward();
    expect_close(full_tensor(x.grad()), alone.grad(), 1e-12, "gradient");
  });
}

// Keeps what is warned of on its thread.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    messages.push_back(warning.msg());
  }
  std::vector<std::string> messages;
};

TEST(ExplicitRedistributionTest, WarnsOnceAnOp) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 6}, 1), mesh, {Shard(1)});
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const ExplicitRedistribution scope({.mode = Mode::kWarn});
    EXPECT_NO_THROW(x.sort(1));
    EXPECT_NO_THROW(x.sort(1));
    EXPECT_EQ(warnings.messages.size(), 1);
    EXPECT_THAT(warnings.messages.at(0), HasSubstr("[aten::sort]"));
  });
}

TEST(ExplicitRedistributionTest, AnInnerScopeCanAllowIt) {
  run_ranks(2, [](RankContext& self) {
    const auto x = distributed(random({4, 6}, 1), line(self), {Shard(1)});
    const ExplicitRedistribution scope;
    {
      const ExplicitRedistribution inner({.enable = false});
      EXPECT_NO_THROW(x.sort(1));
    }
    EXPECT_THROW(x.sort(1), c10::ValueError);
  });
}

TEST(ExplicitRedistributionTest, CountsTheBytesOfEveryStep) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto bytes = [&](Placements from, Placements to) {
      return redistributed_bytes({mesh, from}, {mesh, to}, {16, 16}, 4);
    };
    EXPECT_EQ(bytes({kR, kR}, {Shard(0), kR}), 0);
    EXPECT_EQ(bytes({Shard(0), kR}, {kR, kR}), 512);
    EXPECT_EQ(bytes({Shard(0), Shard(0)}, {kR, kR}), 256 + 512);
    EXPECT_EQ(bytes({Partial(), kR}, {kR, kR}), 1024);
    EXPECT_EQ(bytes({Partial(), kR}, {Shard(0), kR}), 512);
    // One exchange in which two of the four ranks swap their parts.
    EXPECT_EQ(bytes({Shard(0), Shard(1)}, {Shard(1), Shard(0)}), 256);
  });
}

} // namespace
} // namespace weft::dtensor
