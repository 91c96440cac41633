// Parameters of other groups, and what options refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::entries_named;
using test::expect_all_close;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A rank's pair of replicas: {0, 1} or {2, 3}.
mesh::DeviceMesh pair_of(const RankContext& self) {
  const auto first = self.rank / 2 * 2;
  return mesh::DeviceMesh::from_group(
      self.world,
      self.world.make_group(
          "pair" + std::to_string(first), {first, first + 1}));
}

at::Tensor input(int64_t rank) {
  return wave({2, 6}, 0.1 + static_cast<double>(rank));
}

/// The sum of what the ranks' gradients are, over `divisor`.
std::vector<at::Tensor> sum_over(
    const std::vector<int64_t>& ranks,
    double divisor) {
  Mlp model;
  for (const auto rank : ranks) {
    (model.forward(input(rank)).pow(2).mean() / divisor).backward();
  }
  return test::gradients_of(model);
}

TEST(ParameterGroups, AreReducedOverTheirOwnRanks) {
  for (const auto divide_by : {std::optional<double>(), {8.0}}) {
    run_ranks(4, [&](RankContext& self) {
      const auto mesh = self.mesh({4}, {"dp"});
      const auto pair = pair_of(self);
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model,
          mesh,
          {.parameter_groups = {
               {.parameters = {"b.*"}, .mesh = pair, .divide_by = divide_by}}});
      const auto first = self.rank / 2 * 2;
      const auto all = sum_over({0, 1, 2, 3}, 4);
      const auto own = sum_over({first, first + 1}, divide_by.value_or(2));
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        ddp(input(self.rank)).pow(2).mean().backward();
        const auto gradients = test::gradients_of(*model);
        for (const size_t i : {0, 1, 4, 5}) {
          expect_all_close({gradients[i]}, {all[i]});
        }
        for (const size_t i : {2, 3}) {
          expect_all_close({gradients[i]}, {own[i]});
        }
      }
      for (const auto& bucket : ddp.bucket_names()) {
        const bool is_expert = bucket.front().starts_with("b.");
        for (const auto& name : bucket) {
          EXPECT_EQ(name.starts_with("b."), is_expert) << name;
        }
      }
    });
  }
}

TEST(ParameterGroups, StartFromTheFirstRankOfTheirOwn) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({4}, {"dp"});
    auto model = std::make_shared<Mlp>();
    test::fill_parameters(*model, static_cast<double>(self.rank));
    const DistributedDataParallel ddp(
        model,
        mesh,
        {.parameter_groups = {{.parameters = {"b.*"}, .mesh = pair_of(self)}}});
    const auto value_of = [](int64_t rank) {
      auto other = std::make_shared<Mlp>();
      test::fill_parameters(*other, static_cast<double>(rank));
      return other;
    };
    const auto first = value_of(0);
    const auto first_of_pair = value_of(self.rank / 2 * 2);
    EXPECT_TRUE(at::equal(model->a->weight, first->a->weight));
    EXPECT_TRUE(at::equal(model->b->weight, first_of_pair->b->weight));
  });
}

/// What construction with `options` on two ranks says.
std::string refusal(const DistributedDataParallelOptions& options) {
  std::string message;
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto own = message_of_thrown<c10::ValueError>([&] {
      const DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh, options);
    });
    if (self.rank == 0) {
      message = own;
    }
  });
  return message;
}

TEST(OptionErrors, NameTheOptionAndWhatIsWrong) {
  EXPECT_THAT(
      refusal({.broadcast_buffers = true, .forward_sync_buffers = false}),
      HasSubstr("broadcast_buffers and forward_sync_buffers"));
  EXPECT_THAT(
      refusal({.skip_all_reduce_unused_params = true}),
      HasSubstr("find_unused_parameters or static_graph"));
  EXPECT_THAT(
      refusal({.delay_all_reduce_named_params = {"a.weight"}}),
      HasSubstr("must be set together"));
  EXPECT_THAT(
      refusal(
          {.delay_all_reduce_named_params = {"a.weihgt"},
           .param_to_hook_all_reduce = "b.weight"}),
      HasSubstr("delay_all_reduce_named_params names \"a.weihgt\""));
  EXPECT_THAT(
      refusal(
          {.delay_all_reduce_named_params = {"a.weight"},
           .param_to_hook_all_reduce = "a.weight"}),
      HasSubstr("would then wait for themselves"));
  EXPECT_THAT(
      refusal({.params_and_buffers_to_ignore = {"d.weight"}}),
      HasSubstr("params_and_buffers_to_ignore names \"d.weight\""));
  EXPECT_THAT(refusal({.bucket_cap_mb_list = {1.0, -1.0}}), HasSubstr("-1"));
  MixedPrecision integers;
  integers.reduce_dtype = at::kLong;
  EXPECT_THAT(
      refusal({.mixed_precision = integers}),
      HasSubstr("mixed_precision.reduce_dtype"));
}

TEST(OptionErrors, NameAPatternThatMatchesNothingAndARankOutside) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    const auto wrap = [&](const mesh::DeviceMesh& dp, const std::string& name) {
      return message_of_thrown<c10::ValueError>([&] {
        const DistributedDataParallel ddp(
            std::make_shared<Mlp>(),
            dp,
            {.parameter_groups = {{.parameters = {name}, .mesh = mesh["dp"]}}});
      });
    };
    EXPECT_THAT(wrap(mesh["dp"], "experts.*"), HasSubstr("\"experts.*\""));
    // A mesh of one rank does not have the other.
    EXPECT_THAT(
        wrap(mesh["tp"], "b.*"), HasSubstr("is not among the replicas"));
  });
}

/// Multiplies its input by a weight that one rank can spoil.
TEST(CheckForNanInGrad, NamesParameterAndRankOnAllRanks) {
  run_ranks(3, [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(
        model, self.mesh({3}, {"dp"}), {.check_for_nan_in_grad = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      auto handle = model->b->bias.register_hook([&](const at::Tensor& g) {
        return self.rank == 1 && step == 1 ? g / 0.0 : g;
      });
      const auto run = [&] { ddp(input(self.rank)).pow(2).mean().backward(); };
      if (step == 1) {
        EXPECT_THAT(
            message_of_thrown<c10::ValueError>(run),
            AllOf(HasSubstr("NaN or infinity"), HasSubstr("rank 1: b.bias")));
      } else {
        run();
        expect_all_close(test::gradients_of(*model), sum_over({0, 1, 2}, 3));
      }
      model->b->bias.remove_hook(handle);
    }
  });
}

TEST(Parameters, ThatAreAddedAfterWrappingAreRefused) {
  run_ranks(2, [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({2}, {"dp"}));
    ddp(input(self.rank)).pow(2).mean().backward();
    model->register_parameter("late", at::zeros({2}, at::kDouble));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp(input(self.rank)).pow(2).mean().backward(); }),
        HasSubstr("late was added after the model was wrapped"));
  });
}

/// One of two layers, or both.
struct Changing : torch::nn::Module {
  Changing()
      : one(register_module("one", torch::nn::Linear(6, 6))),
        other(register_module("other", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = one(x);
    return uses_both ? y + other(x) : y;
  }
  bool uses_both = true;
  torch::nn::Linear one, other;
};

TEST(StaticGraph, AGraphThatChangesIsAnErrorOnAllRanks) {
  for (const bool used_first : {true, false}) {
    run_ranks(2, [&](RankContext& self) {
      auto model = std::make_shared<Changing>();
      DistributedDataParallel ddp(
          model, self.mesh({2}, {"dp"}), {.static_graph = true});
      const auto step = [&](bool uses_both) {
        model->zero_grad();
        model->uses_both = uses_both;
        ddp(input(self.rank)).pow(2).mean().backward();
      };
      step(used_first);
      step(used_first);
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { step(self.rank == 1 ? !used_first : used_first); }),
          AllOf(HasSubstr("other.weight"), HasSubstr("rank 1")));
      step(used_first);
    });
  }
}

TEST(SkipAllReduceUnused, SkipsParametersThatNoRankUses) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    auto model = std::make_shared<Changing>();
    DistributedDataParallel ddp(
        model,
        mesh,
        {.bucket_cap_mb = 1e-6,
         .find_unused_parameters = true,
         .skip_all_reduce_unused_params = true});
    for (int step = 0; step < 6; ++step) {
      // One rank, the other, none.
      const auto user = step % 3;
      model->zero_grad();
      model->uses_both = self.rank == user;
      mesh.group("dp").flight_recorder().reset();
      ddp(input(self.rank)).pow(2).mean().backward();
      const auto reductions = entries_named(mesh.group("dp"), "ddp bucket");
      Changing alone;
      for (int rank = 0; rank < 2; ++rank) {
        alone.uses_both = rank == user;
        (alone.forward(input(rank)).pow(2).mean() / 2).backward();
      }
      expect_all_close({model->one->weight.grad()}, {alone.one->weight.grad()});
      if (user < 2) {
        expect_all_close(
            {model->other->weight.grad()}, {alone.other->weight.grad()});
      } else {
        EXPECT_FALSE(model->other->weight.grad().defined());
      }
      EXPECT_EQ(reductions.size(), user < 2 ? 4 : 2);
    }
  });
}

TEST(AutoBucketing, ChoosesCapsThatAllRanksShareAndAResumedRunKeeps) {
  std::vector<std::vector<std::vector<std::string>>> layouts(3);
  run_ranks(3, [&](RankContext& self) {
    const auto mesh = self.mesh({3}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh, {.auto_bucketing = true});
    ddp(input(self.rank)).pow(2).mean().backward();
    layouts[self.rank] = ddp.bucket_names();
    auto again = std::make_shared<Mlp>();
    DistributedDataParallel resumed(again, mesh, {.auto_bucketing = true});
    resumed.set_bucket_layout(layouts[self.rank]);
    resumed(input(self.rank)).pow(2).mean().backward();
    EXPECT_EQ(resumed.bucket_names(), layouts[self.rank]);
  });
  EXPECT_EQ(layouts[0], layouts[1]);
  EXPECT_EQ(layouts[0], layouts[2]);
  size_t count = 0;
  for (const auto& bucket : layouts[0]) {
    count += bucket.size();
  }
  EXPECT_EQ(count, 6);
}

TEST(BucketModes, CoalesceOrReduceOneByOne) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto reductions = [&](BucketMode mode) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(model, mesh, {.bucket_mode = mode});
      const auto step = [&] {
        model->zero_grad();
        ddp(input(self.rank)).pow(2).mean().backward();
      };
      step();
      mesh.group("dp").flight_recorder().reset();
      step();
      return entries_named(mesh.group("dp"), "ddp bucket").size();
    };
    EXPECT_EQ(reductions(BucketMode::kConcatenated), 1);
    EXPECT_EQ(reductions(BucketMode::kCoalesced), 1);
    EXPECT_EQ(reductions(BucketMode::kPerParameter), 6);
  });
}

TEST(BucketCapList, CapsOneBucketAfterTheOther) {
  run_ranks(2, [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    constexpr double kKiB = 1.0 / 1024;
    // c: 27 numbers, b: 72, a: 56, of 8 bytes.
    DistributedDataParallel ddp(
        model,
        self.mesh({2}, {"dp"}),
        {.bucket_cap_mb = 0.5 * kKiB,
         .bucket_cap_mb_list = {0.25 * kKiB, 0.6 * kKiB}});
    ddp(input(self.rank)).pow(2).mean().backward();
    EXPECT_THAT(
        ddp.bucket_names(),
        ElementsAre(
            ElementsAre("c.bias", "c.weight"),
            ElementsAre("b.bias", "b.weight"),
            ElementsAre("a.bias", "a.weight")));
  });
}

} // namespace
} // namespace weft::ddp
