// Ranks with different numbers of inputs, under Join: what they have at the end
// is what one rank computes, and what PyTorch's DDP has under its own.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/joinable_optimizer.h"
#include "tests/ddp/join/join_counter.h"
#include "tests/ddp/join/join_reference.h"
#include "tests/ddp/join/join_training.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::Division;
using test::expect_all_close;
using test::JoinCounter;
using test::JoinRun;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;

class UnevenInputs : public ::testing::TestWithParam<JoinRun> {
 protected:
  static void TearDownTestSuite() { ranks_.clear(); }

  static inline test::SharedRanks ranks_;
};

TEST_P(UnevenInputs, EqualOneRankAndPyTorch) {
  const auto& run = GetParam();
  SCOPED_TRACE(run.describe());
  const auto tolerance = run.setup().tolerance;
  const auto traces = test::train_ranks_under_join(ranks_, run);
  if (HasFailure()) {
    return;
  }
  const auto by_hand = test::train_join_by_hand(run);
  const auto pytorch = test::pytorch_join(run);
  const bool is_compared =
      pytorch.is_stored && test::difference_from_pytorch(run).empty();
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    const auto replica = rank / run.tp;
    const auto who = "rank " + std::to_string(rank);
    test::expect_traces_close(
        traces[rank], by_hand.at(replica), tolerance, who + ", by hand:");
    if (is_compared && pytorch.error.empty()) {
      test::expect_traces_close(
          traces[rank],
          pytorch.traces.at(replica),
          tolerance,
          who + ", PyTorch:");
    }
  }
}

std::string join_run_name(const ::testing::TestParamInfo<JoinRun>& info) {
  const auto& run = info.param;
  auto text = "Counts" + test::join_text(run.counts, "_") + "_" +
              test::name_of(run.division) + "_" + run.name;
  std::replace(text.begin(), text.end(), '+', '_');
  return text;
}

#define WEFT_UNEVEN_INPUTS(DP, TP)                  \
  INSTANTIATE_TEST_SUITE_P(                         \
      Dp##DP##Tp##TP,                               \
      UnevenInputs,                                 \
      ::testing::ValuesIn(test::join_runs(DP, TP)), \
      join_run_name)
WEFT_UNEVEN_INPUTS(1, 2);
WEFT_UNEVEN_INPUTS(2, 1);
WEFT_UNEVEN_INPUTS(2, 2);
WEFT_UNEVEN_INPUTS(3, 1);
WEFT_UNEVEN_INPUTS(4, 1);
#undef WEFT_UNEVEN_INPUTS

TEST(JoinCases, AreAllOfPyTorchsAndEachOnce) {
  const auto all = test::join_cases();
  std::set<std::string> cases(all.begin(), all.end());
  EXPECT_EQ(cases.size(), all.size());
  // These have tests of their own.
  cases.insert({"counter", "zero"});
  for (const auto& name : test::pytorch_join_cases()) {
    EXPECT_TRUE(cases.contains(name)) << name;
  }
}

TEST(JoinedCounter, CountsInputsOfAllRanksBesideAModel) {
  for (const int64_t tp : {1, 2}) {
    const JoinRun run{.name = "plain", .tp = tp, .counts = {5, 3}};
    const auto by_hand = test::train_join_by_hand(run);
    auto stored = run;
    stored.name = "counter";
    const auto counts = test::pytorch_join(stored).counter;
    run_ranks(static_cast<int>(run.dp() * tp), [&](RankContext& self) {
      const auto mesh = self.mesh({run.dp(), tp}, {"dp", "tp"});
      JoinCounter first(mesh.group("dp"), mesh["tp"]);
      JoinCounter second(mesh.group("dp"));
      test::JoinTraining training;
      training.joinables = {&first, &second};
      training.at = [&](const std::string& place, int64_t) {
        if (place == "step") {
          first();
          second();
        }
      };
      const auto trace = test::train_under_join(run, mesh, training);
      const auto replica = mesh.coordinate("dp");
      test::expect_traces_close(trace, by_hand.at(replica), 1e-12, "by hand:");
      for (const auto* counter : {&first, &second}) {
        EXPECT_EQ(counter->total, counts.at(2 * replica));
        EXPECT_EQ(counter->was_last, counts.at(2 * replica + 1) == 1);
        EXPECT_EQ(counter->total, 8);
        EXPECT_EQ(counter->shadowed, replica == 0 ? 0 : 2);
        EXPECT_EQ(counter->ends, 1);
        EXPECT_EQ(counter->was_last, replica == 0);
      }
    });
  }
}

TEST(JoinShadows, HaveTheReducedGradientsToo) {
  run_ranks(3, [](RankContext& self) {
    constexpr int64_t kSteps = 5;
    const auto mesh = self.mesh({3}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh["dp"]);
    JoinCounter counter(mesh.group("dp"));
    // The same parameters on all ranks, so that one rank can say what the
    // gradients are: nothing is stepped.
    const auto input = [](int64_t rank, int64_t step) {
      return wave({2, 6}, 0.1 + 10.0 * double(rank) + double(step));
    };
    const auto counts = std::vector<int64_t>{2, 1, kSteps};
    int64_t step = 0;
    const auto check = [&] {
      Mlp alone;
      for (int64_t rank = 0; rank < 3; ++rank) {
        if (step < counts[rank]) {
          (alone.forward(input(rank, step)).pow(2).mean() / 3).backward();
        }
      }
      expect_all_close(
          test::gradients_of(*model), test::gradients_of(alone), 1e-12);
      ++step;
    };
    counter.in_main_hook = check;
    data_parallel::Join join({&ddp, &counter});
    join.run([&] {
      for (int64_t i = 0; i < counts[self.rank]; ++i) {
        model->zero_grad();
        ddp(input(self.rank, i)).pow(2).mean().backward();
        check();
        counter();
      }
    });
    EXPECT_EQ(step, kSteps);
  });
}

// Loops that zero gradients behind the step find none at the begin of the next
// epoch, also where the last steps were shadowed.
TEST(JoinShadows, LeaveNothingToTheNextEpoch) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh["dp"]);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    Mlp alone;
    torch::optim::SGD alone_optimizer(alone.parameters(), 0.1);
    const auto input = [](int64_t rank, int64_t step) {
      return wave({2, 6}, 0.1 + 10.0 * double(rank) + double(step));
    };
    for (const auto& counts :
         {std::vector<int64_t>{1, 3}, std::vector<int64_t>{3, 1}}) {
      ddp.join([&] {
        for (int64_t i = 0; i < counts[self.rank]; ++i) {
          ddp(input(self.rank, i)).pow(2).mean().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
      });
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t rank = 0; rank < 2; ++rank) {
          if (i < counts[rank]) {
            (alone.forward(input(rank, i)).pow(2).mean() / 2).backward();
          }
        }
        alone_optimizer.step();
        alone_optimizer.zero_grad();
      }
      expect_all_close(model->parameters(), alone.parameters(), 1e-12);
    }
  });
}

/// What is lost in one step is made up for in later ones: a rank without inputs
/// must go on doing so, as one whose gradients are zeros does.
TEST(JoinShadows, AreToAHookLikeRanksWithoutGradients) {
  const std::vector<int64_t> counts = {3, 7, 5};
  std::vector<at::Tensor> parameters[2];
  for (const bool is_joined : {false, true}) {
    run_ranks(3, [&](RankContext& self) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model, self.mesh({3}, {"dp"}), {.bucket_cap_mb = 5e-4});
      ddp.register_comm_hook(std::make_shared<data_parallel::PowerSGDHook>(
          data_parallel::PowerSGDOptions{
              .matrix_approximation_rank = 1,
              .start_powerSGD_iter = 2,
              .min_compression_rate = 0.1}));
      torch::optim::SGD optimizer(model->parameters(), test::option_sgd());
      const auto step = [&](int64_t i, double scale) {
        const auto x = wave({4, 6}, double(7 * i + self.rank));
        optimizer.zero_grad();
        (ddp(x).pow(2).mean() * scale).backward();
        optimizer.step();
      };
      data_parallel::Join join({&ddp}, {.enable = is_joined});
      join.run([&] {
        for (int64_t i = 0; i < (is_joined ? counts[self.rank] : 7); ++i) {
          step(i, i < counts[self.rank] ? 1.0 : 0.0);
        }
      });
      if (self.rank == 0) {
        parameters[is_joined ? 1 : 0] = model->parameters();
      }
    });
  }
  expect_all_close(parameters[1], parameters[0], 1e-12);
}

TEST(JoinActiveRanks, AreThoseThatHadInputsWhenTheIterationBegan) {
  run_ranks(3, [](RankContext& self) {
    const std::vector<int64_t> counts = {4, 1, 2};
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({3}, {"dp"}));
    data_parallel::Join join({&ddp});
    join.run([&] {
      for (int64_t i = 0; i < counts[self.rank]; ++i) {
        ddp(wave({2, 6}, 0.1)).sum().backward();
        EXPECT_EQ(
            join.active_ranks(),
            std::count_if(counts.begin(), counts.end(), [&](auto count) {
              return i < count;
            }));
      }
    });
  });
}

/// Three epochs in which other ranks run out of inputs first; `make` makes the
/// optimizer, whose state all share at the end of each.
template <class Make>
void expect_epochs(RankContext& self, int64_t tp, const Make& make) {
  const auto mesh = self.mesh({2, tp}, {"dp", "tp"});
  const auto replica = mesh.coordinate("dp");
  const test::OptionSetup setup;
  const auto model = test::make_replica(setup, mesh);
  DistributedDataParallel ddp(model, mesh["dp"]);
  const auto optimizer = make(model->parameters());
  JoinableOptimizer joined(*optimizer, ddp);
  const auto alone = test::make_replica(setup, 0);
  const auto reference = make(alone->parameters());
  const auto count = [](int64_t rank, int epoch) {
    return rank == epoch % 2 ? 1 : 4;
  };
  const auto input = [](int64_t rank, int epoch, int64_t i) {
    return test::option_inputs("mlp", 2, 100 * epoch + 10 * i + rank);
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    data_parallel::Join join({&ddp, &joined});
    join.run([&] {
      for (int64_t i = 0; i < count(replica, epoch); ++i) {
        optimizer->zero_grad();
        auto x = input(replica, epoch, i);
        if (tp > 1) {
          x = test::place_option_inputs("mlp", x, mesh["tp"]);
        }
        test::option_loss(ddp(x)).backward();
        optimizer->step();
      }
    });
    for (int64_t i = 0; i < 4; ++i) {
      reference->zero_grad();
      for (int64_t rank = 0; rank < 2; ++rank) {
        if (i < count(rank, epoch)) {
          const auto output = alone->forward(input(rank, epoch, i));
          (test::option_loss(output) / 2).backward();
        }
      }
      reference->step();
    }
    optimizer->zero_grad();
    reference->zero_grad();
    test::expect_traces_close(
        test::trace_of(*model, {}),
        test::trace_of(*alone, {}),
        1e-10,
        "epoch " + std::to_string(epoch));
  }
}

TEST(JoinEpochs, GoOnExactlyWithTheOptimizerOfALastRank) {
  using Parameters = std::vector<at::Tensor>;
  for (const int tp : {1, 2}) {
    run_ranks(2 * tp, [&](RankContext& self) {
      expect_epochs(self, tp, [](const Parameters& parameters) {
        return std::make_unique<torch::optim::SGD>(
            parameters, test::option_sgd());
      });
      expect_epochs(self, tp, [](const Parameters& parameters) {
        return std::make_unique<torch::optim::AdamW>(
            parameters, torch::optim::AdamWOptions(0.01));
      });
    });
  }
}

TEST(JoinDisabled, DoesNotCommunicate) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto train = [&](bool is_joined) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(model, mesh);
      const auto body = [&] {
        for (int i = 0; i < 3; ++i) {
          ddp(wave({2, 6}, double(self.rank + i))).sum().backward();
        }
      };
      mesh.group("dp").flight_recorder().reset();
      if (is_joined) {
        data_parallel::Join join({&ddp}, {.enable = false});
        join.run(body);
      } else {
        body();
      }
      return std::pair{
          test::gradients_of(*model),
          mesh.group("dp").flight_recorder().entries().size()};
    };
    const auto plain = train(false);
    const auto joined = train(true);
    expect_all_close(joined.first, plain.first, 0);
    EXPECT_EQ(joined.second, plain.second);
  });
}

TEST(JoinCost, IsOneCollectiveAnIterationHoweverManyJoinables) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    auto& flight_recorder = mesh.group("dp").flight_recorder();
    // Collectives of an epoch of `steps`, with and without Join.
    const auto count = [&](int64_t steps, size_t counters, bool is_joined) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(model, mesh);
      std::vector<std::unique_ptr<JoinCounter>> own;
      std::vector<data_parallel::Joinable*> joinables = {&ddp};
      for (size_t i = 0; i < counters; ++i) {
        own.push_back(std::make_unique<JoinCounter>(mesh.group("dp")));
        own.back()->is_silent = true;
        joinables.push_back(own.back().get());
      }
      flight_recorder.reset();
      data_parallel::Join join(joinables, {.enable = is_joined});
      join.run([&] {
        for (int64_t i = 0; i < steps; ++i) {
          ddp(wave({2, 6}, double(i))).sum().backward();
          for (auto& counter : own) {
            (*counter)();
          }
        }
      });
      return static_cast<int64_t>(flight_recorder.entries().size());
    };
    const auto added = [&](int64_t steps, size_t counters) {
      return count(steps, counters, true) - count(steps, counters, false);
    };
    for (const size_t counters : {0, 1, 3}) {
      EXPECT_EQ(added(9, counters) - added(4, counters), 5) << counters;
    }
    EXPECT_EQ(added(9, 3), added(9, 0));
  });
}

} // namespace
} // namespace weft::ddp
