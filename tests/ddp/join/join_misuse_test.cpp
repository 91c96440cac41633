// What users get wrong with Join, and ranks that fail: an error or a right
// result on every rank, and no rank waits for ever.
#include <atomic>
#include <stdexcept>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/join/join_counter.h"
#include "tests/ddp/join/join_training.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::JoinCounter;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::function<void()> kNoBody = [] {};

template <class... Each>
std::string join_refusal(Each*... joinables) {
  return message_of_thrown<c10::ValueError>(
      [&] { data_parallel::Join join({joinables...}); });
}

void step_counter(JoinCounter& counter, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    counter();
  }
}

/// Forward and backward of this rank's input number `i`.
void step_ddp(DistributedDataParallel<Mlp>& ddp, int64_t i) {
  ddp(wave({2, 6}, double(i))).pow(2).mean().backward();
}

TEST(JoinConstruction, RefusesNoneNullAndRepeatedJoinables) {
  run_ranks(2, [](RankContext& self) {
    JoinCounter counter(self.mesh({2}, {"dp"}).group("dp"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [] { data_parallel::Join join({}); }),
        HasSubstr("there are no joinables"));
    data_parallel::Joinable* none = nullptr;
    EXPECT_THAT(
        join_refusal<data_parallel::Joinable>(&counter, none),
        HasSubstr("joinable 1 is null"));
    EXPECT_THAT(
        join_refusal<data_parallel::Joinable>(&counter, &counter),
        HasSubstr("was given twice"));
    // It is as good as new.
    data_parallel::Join join({&counter});
    join.run([&] { step_counter(counter, 3); });
    EXPECT_EQ(counter.total, 6);
  });
}

TEST(JoinConstruction, RefusesDifferentGroupsDevicesAndRows) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto device = c10::Device(c10::kMeta);
    JoinCounter on_dp(mesh.group("dp"));
    JoinCounter on_tp(mesh.group("tp"));
    JoinCounter elsewhere(mesh.group("dp"), {}, device);
    JoinCounter in_row(mesh.group("dp"), mesh["tp"]);
    JoinCounter in_other_row(mesh.group("dp"), mesh["dp"]);
    EXPECT_THAT(
        join_refusal<data_parallel::Joinable>(&on_dp, &on_tp),
        AllOf(HasSubstr("different process groups"), HasSubstr("dp")));
    EXPECT_THAT(
        join_refusal<data_parallel::Joinable>(&on_dp, &elsewhere),
        AllOf(HasSubstr("different devices"), HasSubstr("meta")));
    EXPECT_THAT(
        join_refusal<data_parallel::Joinable>(&in_row, &in_other_row),
        HasSubstr("different model-parallel meshes"));
    data_parallel::Join fits({&on_dp, &in_row});
  });
}

TEST(JoinContexts, AreNotNestedAndRunOnce) {
  run_ranks(2, [](RankContext& self) {
    const auto group = self.mesh({2}, {"dp"}).group("dp");
    JoinCounter counter(group);
    JoinCounter other(group);
    data_parallel::Join join({&counter});
    join.run([&] {
      step_counter(counter, 1);
      data_parallel::Join nested({&other, &counter});
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>([&] { nested.run(kNoBody); }),
          HasSubstr("nested"));
      step_counter(counter, 1 + self.rank);
    });
    EXPECT_EQ(counter.total, 5);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { join.run(kNoBody); }),
        HasSubstr("once"));
    // One inside another is fine with joinables of its own.
    data_parallel::Join outer({&counter});
    outer.run([&] {
      step_counter(counter, 1);
      data_parallel::Join inner({&other});
      inner.run([&] { step_counter(other, self.rank); });
    });
    EXPECT_EQ(counter.total, 7);
    EXPECT_EQ(other.total, 1);
  });
}

TEST(JoinContexts, HaveNoEffectOnJoinablesOutside) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh["dp"]);
    JoinCounter counter(mesh.group("dp"));
    const auto works_alone = [&] {
      EXPECT_FALSE(counter.join_config().enable);
      EXPECT_FALSE(ddp.join_config().enable);
      EXPECT_FALSE(data_parallel::Join::notify_join_context(counter));
      EXPECT_FALSE(data_parallel::Join::notify_join_context(ddp));
      auto& flight_recorder = mesh.group("dp").flight_recorder();
      model->zero_grad();
      flight_recorder.reset();
      step_ddp(ddp, self.rank);
      EXPECT_TRUE(test::entries_named(mesh.group("dp"), "join").empty());
      Mlp alone;
      for (int64_t rank = 0; rank < 2; ++rank) {
        const auto x = wave({2, 6}, double(rank));
        (alone.forward(x).pow(2).mean() / 2).backward();
      }
      test::expect_all_close(
          test::gradients_of(*model), test::gradients_of(alone));
    };
    works_alone();
    data_parallel::Join join({&ddp, &counter});
    join.run([&] {
      EXPECT_TRUE(ddp.join_config().enable);
      EXPECT_TRUE(ddp.join_config().is_first_joinable);
      EXPECT_TRUE(counter.join_config().enable);
      EXPECT_FALSE(counter.join_config().is_first_joinable);
      for (int64_t i = 0; i < self.rank; ++i) {
        step_ddp(ddp, i);
        counter();
      }
    });
    works_alone();
    EXPECT_EQ(counter.total, 1);
  });
}

TEST(JoinContexts, OnlyTheFirstJoinablesNotificationsCount) {
  run_ranks(2, [](RankContext& self) {
    const auto group = self.mesh({2}, {"dp"}).group("dp");
    JoinCounter first(group);
    JoinCounter second(group);
    first.is_silent = second.is_silent = true;
    data_parallel::Join join(
        {&first, &second}, {.throw_on_early_termination = true});
    const auto entries = [&] {
      return static_cast<int64_t>(group.flight_recorder().entries().size());
    };
    join.run([&] {
      const auto begin = entries();
      EXPECT_TRUE(first.join_config().throw_on_early_termination);
      EXPECT_FALSE(data_parallel::Join::notify_join_context(second));
      EXPECT_EQ(entries(), begin);
      EXPECT_TRUE(data_parallel::Join::notify_join_context(first));
      EXPECT_EQ(entries(), begin + 1);
      EXPECT_FALSE(data_parallel::Join::notify_join_context(second));
      EXPECT_EQ(entries(), begin + 1);
    });
  });
}

TEST(JoinKwargsTest, GoToEveryHookAndWrongOnesAreRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto group = mesh.group("dp");
    JoinCounter first(group);
    JoinCounter second(group);
    data_parallel::Join join(
        {&first, &second}, {}, {{"factor", 2.5}, {"exact", true}});
    join.run([&] {
      step_counter(first, 1);
      second();
    });
    for (const auto* counter : {&first, &second}) {
      EXPECT_EQ(counter->hooks_made, 1);
      EXPECT_EQ(counter->last_kwargs.at("factor").toDouble(), 2.5);
      EXPECT_TRUE(counter->last_kwargs.at("exact").toBool());
    }
    DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
    DistributedDataParallel sums(
        std::make_shared<Mlp>(),
        mesh["dp"],
        {.reduce_op = mesh::ReduceOp::kSum});
    const auto refusal = [](data_parallel::Joinable& joinable,
                            const data_parallel::JoinKwargs& kwargs) {
      return message_of_thrown<c10::ValueError>([&] {
        data_parallel::Join refused({&joinable}, {}, kwargs);
        refused.run(kNoBody);
      });
    };
    EXPECT_THAT(
        refusal(ddp, {{"divide_by_initial_world_size", "yes"}}),
        HasSubstr("divide_by_initial_world_size"));
    EXPECT_THAT(
        refusal(sums, {{"weight_by_samples", true}}),
        HasSubstr("weight_by_samples"));
    data_parallel::Join fits(
        {&ddp}, {}, {{"divide_by_initial_world_size", false}});
    fits.run([&] { step_ddp(ddp, 0); });
  });
}

TEST(JoinRanks, WithoutAnyInputEndWithTheRest) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{0, 0}, {0, 3}, {3, 0}}) {
    run_ranks(2, [&](RankContext& self) {
      const auto mesh = self.mesh({2}, {"dp"});
      DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
      JoinCounter counter(mesh.group("dp"));
      data_parallel::Join join({&ddp, &counter});
      join.run([&] {
        for (int64_t i = 0; i < counts[self.rank]; ++i) {
          step_ddp(ddp, i);
          counter();
        }
      });
      EXPECT_EQ(counter.total, counts[0] + counts[1]);
      EXPECT_EQ(counter.ends, 1);
      EXPECT_EQ(counter.was_last, counts[self.rank] >= counts[1 - self.rank]);
    });
  }
}

TEST(JoinEarlyTermination, IsAnErrorOnAllRanksWithRankAndStep) {
  for (const bool has_model : {true, false}) {
    run_ranks(3, [&](RankContext& self) {
      const auto mesh = self.mesh({3}, {"dp"});
      DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
      JoinCounter counter(mesh.group("dp"));
      std::vector<data_parallel::Joinable*> joinables = {&counter};
      if (has_model) {
        joinables = {&ddp, &counter};
      }
      const auto run = [&](const std::vector<int64_t>& counts) {
        data_parallel::Join join(
            joinables, {.throw_on_early_termination = true});
        join.run([&] {
          for (int64_t i = 0; i < counts[self.rank]; ++i) {
            if (has_model) {
              step_ddp(ddp, i);
            }
            counter();
          }
        });
      };
      EXPECT_THAT(
          message_of_thrown<data_parallel::EarlyTerminationError>([&] {
            run({4, 2, 2});
          }),
          AllOf(
              HasSubstr("rank 1 ran out of inputs after 2 iterations"),
              HasSubstr("rank 2 ran out of inputs after 2 iterations"),
              Not(HasSubstr("rank 0 ran out"))));
      EXPECT_THROW(run({0, 1, 2}), data_parallel::EarlyTerminationError);
      // Nothing is left behind, and even inputs are no error.
      counter.total = 0;
      run({3, 3, 3});
      EXPECT_EQ(counter.total, 9);
    });
  }
}

TEST(JoinFailures, OfABodyOutsideOfCollectivesAreNamedOnAllRanks) {
  // With many buckets, and with weights, it is known within backward.
  const std::vector<std::tuple<int64_t, double, bool>> cases{
      {0, 25, false},
      {1, 25, false},
      {4, 25, false},
      {0, 25, true},
      {1, 1e-5, false},
      {4, 1e-5, true}};
  for (const auto& [failing_step, bucket_cap_mb, by_samples] : cases) {
    run_ranks(
        3,
        [&,
         failing_step = failing_step,
         cap = bucket_cap_mb,
         by_samples = by_samples](RankContext& self) {
          const std::vector<int64_t> counts = {2, 5, 7};
          const auto mesh = self.mesh({3}, {"dp"});
          DistributedDataParallelOptions options;
          options.bucket_cap_mb = cap;
          DistributedDataParallel ddp(
              std::make_shared<Mlp>(), mesh["dp"], options);
          const auto run = [&](bool fails) {
            data_parallel::Join join(
                {&ddp}, {}, {{"weight_by_samples", by_samples}});
            join.run([&] {
              for (int64_t i = 0; i < counts[self.rank]; ++i) {
                if (fails && self.rank == 1 && i == failing_step) {
                  throw std::runtime_error("no such file");
                }
                step_ddp(ddp, i);
              }
            });
          };
          if (self.rank == 1) {
            try {
              run(true);
              ADD_FAILURE() << "nothing was thrown";
            } catch (const std::runtime_error& error) {
              EXPECT_STREQ(error.what(), "no such file");
            }
          } else {
            EXPECT_THAT(
                message_of_thrown<data_parallel::JoinError>([&] { run(true); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("no such file")));
          }
          run(false); // the group goes on
        });
  }
}

// A body that logs errors and goes on must not wait for ranks that are gone.
TEST(JoinFailures, AreThrownAgainWhereABodyCatchesThem) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
    int caught = 0;
    EXPECT_THAT(
        message_of_thrown<data_parallel::EarlyTerminationError>([&] {
          data_parallel::Join({&ddp}, {.throw_on_early_termination = true})
              .run([&] {
                for (int64_t i = 0; i < (self.rank == 0 ? 2 : 6); ++i) {
                  try {
                    step_ddp(ddp, i);
                  } catch (const std::exception&) {
                    ++caught;
                  }
                }
              });
        }),
        HasSubstr("rank 0 ran out of inputs after 2 iterations"));
    EXPECT_EQ(caught, self.rank == 0 ? 0 : 4);
  });
}

TEST(JoinFailures, OfABodyInARowAreNamedOnAllRanks) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    JoinCounter counter(mesh.group("dp"), mesh["tp"]);
    const auto run = [&] {
      data_parallel::Join join({&counter});
      join.run([&] {
        step_counter(counter, 2);
        if (self.rank == 3) {
          throw std::runtime_error("no such file");
        }
        step_counter(counter, 2);
      });
    };
    if (self.rank == 3) {
      EXPECT_THROW(run(), std::runtime_error);
    } else {
      const auto message = message_of_thrown<data_parallel::JoinError>(run);
      EXPECT_THAT(
          message, HasSubstr(self.rank == 1 ? "rank 3" : "model-parallel"));
    }
  });
}

TEST(JoinFailures, InsideCollectivesEndAllRanks) {
  for (const bool is_shadowed : {false, true}) {
    run_ranks(2, [&](RankContext& self) {
      const auto mesh = self.mesh({2}, {"dp"});
      DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
      const auto run = [&] {
        data_parallel::Join join({&ddp});
        join.run([&] {
          if (self.rank == 0 && is_shadowed) {
            return;
          }
          step_ddp(ddp, 0);
          const auto output = ddp(wave({2, 6}, 0.1));
          if (self.rank == 1) {
            throw std::runtime_error("between forward and backward");
          }
          output.sum().backward();
        });
      };
      if (self.rank == 1) {
        EXPECT_THROW(run(), std::runtime_error);
      } else {
        EXPECT_THROW(run(), mesh::CommError);
      }
    });
  }
}

TEST(JoinFailures, OfAHookEndAllRanks) {
  for (const bool is_main : {true, false}) {
    run_ranks(3, [&](RankContext& self) {
      JoinCounter counter(self.mesh({3}, {"dp"}).group("dp"));
      const auto fail = [&] {
        if (self.rank == 0) {
          throw std::runtime_error("the hook failed");
        }
      };
      (is_main ? counter.in_main_hook : counter.in_post_hook) = fail;
      const auto run = [&] {
        data_parallel::Join join({&counter});
        join.run([&] { step_counter(counter, 1 + 2 * self.rank); });
        // What comes next finds the group aborted.
        counter();
      };
      if (self.rank == 0) {
        try {
          run();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "the hook failed");
        }
      } else {
        EXPECT_THROW(run(), mesh::CommError);
      }
    });
  }
}

TEST(JoinFailures, OfARankThatDiesEndTheOthers) {
  // While all train, while the others shadow, and as a shadow.
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{9, 9, 9}, {1, 9, 0}, {9, 2, 9}}) {
    run_ranks(3, [&](RankContext& self) {
      const auto mesh = self.mesh({3}, {"dp"});
      DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh["dp"]);
      JoinCounter counter(mesh.group("dp"));
      const auto die = [&] { self.world.abort(); };
      if (self.rank == 1) {
        counter.in_main_hook = die;
      }
      data_parallel::Join join({&ddp, &counter});
      EXPECT_THROW(
          join.run([&] {
            for (int64_t i = 0; i < counts[self.rank]; ++i) {
              if (self.rank == 1 && i == 4) {
                die();
              }
              step_ddp(ddp, i);
              counter();
            }
          }),
          mesh::CommError);
    });
  }
}

/// Collects warnings of this thread.
struct WarningsOfThread : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    messages.push_back(warning.msg());
  }
  std::vector<std::string> messages;
};

TEST(JoinImbalance, IsWarnedOfAfterAThousandIterations) {
  run_ranks(2, [](RankContext& self) {
    JoinCounter counter(self.mesh({2}, {"dp"}).group("dp"));
    const auto warnings_of = [&](int64_t steps) {
      WarningsOfThread handler;
      const c10::WarningUtils::WarningHandlerGuard guard(&handler);
      data_parallel::Join join({&counter});
      join.run([&] { step_counter(counter, self.rank == 0 ? 3 : 3 + steps); });
      return handler.messages;
    };
    EXPECT_TRUE(warnings_of(999).empty());
    const auto warnings = warnings_of(1500);
    if (self.rank == 1) {
      EXPECT_TRUE(warnings.empty());
      return;
    }
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_THAT(
        warnings[0], AllOf(HasSubstr("rank 0"), HasSubstr("after 3 iter")));
  });
}

TEST(JoinRows, LeaveTogetherWhereMembersHaveDifferentInputs) {
  // Rank 3's loader is short by one: its row leaves with it.
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    JoinCounter counter(mesh.group("dp"), mesh["tp"]);
    data_parallel::Join join({&counter});
    int64_t done = 0;
    join.run([&] {
      for (int64_t i = 0; i < (self.rank == 3 ? 2 : 5); ++i) {
        counter();
        ++done;
      }
    });
    EXPECT_EQ(done, self.rank < 2 ? 5 : 2);
    EXPECT_EQ(counter.total, 7);
    EXPECT_EQ(counter.was_last, self.rank < 2);
  });
}

} // namespace
} // namespace weft::ddp
