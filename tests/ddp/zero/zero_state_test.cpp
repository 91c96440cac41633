// The state of the sharded optimizer: its size on a rank, and how it gets into
// checkpoints and out of them.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/zero/zero_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::ddp {
namespace {

namespace fs = std::filesystem;
using dtensor::StateDict;
using test::expect_same_parameters;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::set_zero_gradients;
using test::zero_case;
using test::zero_cases;
using test::ZeroCase;
using test::ZeroModel;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<ZeroRedundancyOptimizerOptions> both_partitions() {
  return {
      {.partition = ZeroPartition::kWholeParameters},
      {.partition = ZeroPartition::kEvenSplit}};
}

void train(
    torch::nn::Module& module,
    torch::optim::Optimizer& optimizer,
    int64_t first,
    int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    set_zero_gradients(module, step);
    optimizer.step();
  }
}

void expect_same_state(
    const StateDict& actual,
    const StateDict& expected,
    const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [key, tensor] : expected) {
    ASSERT_TRUE(actual.contains(key)) << what << " " << key;
    const auto& other = actual.at(key);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << what << key;
    EXPECT_TRUE(
        at::equal(dtensor::full_tensor(other), dtensor::full_tensor(tensor)))
        << what << " " << key;
  }
}

/// Bytes of the moments that this rank has.
int64_t state_bytes(const StateDict& state) {
  int64_t bytes = 0;
  for (const auto& [key, tensor] : state) {
    const auto local = dtensor::to_local(tensor);
    if (key.starts_with("state.") && local.dim() > 0) {
      bytes += static_cast<int64_t>(local.nbytes());
    }
  }
  return bytes;
}

class ZeroState : public ::testing::TestWithParam<int> {};

TEST_P(ZeroState, HasThePlainOptimizersKeysAndValues) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto dp = self.mesh({self.world_size}, {"dp"});
    for (const auto& [name, make] : zero_cases()) {
      for (const auto& options : both_partitions()) {
        const auto what = name + " " + test::zero_options_name(options);
        ZeroModel model;
        ZeroModel plain;
        ZeroRedundancyOptimizer optimizer(model.groups(), make, dp, options);
        const auto expected = make(plain.groups());
        for (const int64_t steps : {0, 3}) {
          train(model, optimizer, 0, steps);
          train(plain, *expected, 0, steps);
          expect_same_state(
              optimizer.state_dict(model),
              dtensor::optimizer_state_dict(*expected, plain, dp),
              what);
        }
      }
    }
  });
}

TEST_P(ZeroState, KeepsWhatWasKnownOfAParameterThatIsFrozenNow) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto dp = self.mesh({self.world_size}, {"dp"});
    for (const auto& [name, make] : zero_cases()) {
      for (const auto& options : both_partitions()) {
        const auto what = name + " " + test::zero_options_name(options);
        ZeroModel model;
        ZeroModel plain;
        ZeroRedundancyOptimizer optimizer(model.groups(), make, dp, options);
        const auto expected = make(plain.groups());
        const auto set_frozen = [](ZeroModel& each, bool is_frozen) {
          for (const auto* parameter : {"wide", "bias", "half"}) {
            auto tensor = each.named_parameters()[parameter];
            tensor.mutable_grad() = at::Tensor();
            tensor.set_requires_grad(!is_frozen);
          }
        };
        // One that never learned has nothing.
        set_frozen(model, true);
        set_frozen(plain, true);
        expect_same_state(
            optimizer.state_dict(model),
            dtensor::optimizer_state_dict(*expected, plain, dp),
            what + " frozen from the start");
        set_frozen(model, false);
        set_frozen(plain, false);
        train(model, optimizer, 0, 2);
        train(plain, *expected, 0, 2);
        set_frozen(model, true);
        set_frozen(plain, true);
        const auto state = optimizer.state_dict(model);
        expect_same_state(
            state, dtensor::optimizer_state_dict(*expected, plain, dp), what);
        EXPECT_TRUE(name == "sgd" || state.contains("state.wide.step")) << what;

        // It comes back in another optimizer, whose parameters learn again.
        ZeroModel again;
        ZeroRedundancyOptimizer other(again.groups(), make, dp, options);
        other.load_state_dict(again, state);
        set_frozen(plain, false);
        expect_same_state(
            other.state_dict(again),
            dtensor::optimizer_state_dict(*expected, plain, dp),
            what + " thawed");
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    ZeroState,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

/// Eight layers alike.
struct EvenModel : torch::nn::Module {
  EvenModel() {
    for (int i = 0; i < 8; ++i) {
      register_module("layer" + std::to_string(i), torch::nn::Linear(32, 16));
    }
    test::fill_parameters(*this);
  }
};

TEST(ZeroMemory, OfTheStateIsDividedByTheReplicas) {
  const int64_t whole = 2 * 8 * (32 * 16 + 16) * 4;
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto dp = self.mesh({self.world_size}, {"dp"});
      for (const auto& options : both_partitions()) {
        EvenModel model;
        const auto optimizer = make_zero<torch::optim::AdamW>(
            model.parameters(), torch::optim::AdamWOptions(0.1), dp, options);
        train(model, *optimizer, 2, 3);
        EXPECT_EQ(
            state_bytes(optimizer->state_dict(model)), whole / self.world_size);
      }
    });
  }
}

// Parameters of very different sizes: nobody has more than a fair share and one
// parameter.
TEST(ZeroMemory, IsBalancedByBytes) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    std::vector<at::Tensor> parameters;
    std::vector<int64_t> bytes(3, 0);
    int64_t all = 0;
    for (int64_t i = 0; i < 20; ++i) {
      parameters.push_back(at::zeros(
          {1 + (i * 37) % 50, 1 + i % 3},
          i % 4 == 0 ? at::kDouble : at::kFloat));
      all += static_cast<int64_t>(parameters.back().nbytes());
    }
    const auto optimizer = make_zero<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1), dp);
    for (const auto& [parameter, part] : optimizer->parts()) {
      ASSERT_EQ(part.kind, ZeroPart::Kind::kOwned);
      bytes[part.owner] += static_cast<int64_t>(parameter.nbytes());
    }
    for (const auto each : bytes) {
      EXPECT_LE(each, all / 3 + 60);
      EXPECT_GE(each, all / 3 - 60);
    }
  });
}

TEST(ZeroMemory, HasNothingForRanksBeyondTheParameters) {
  run_ranks(4, [](RankContext& self) {
    const auto dp = self.mesh({4}, {"dp"});
    torch::nn::Linear model(4, 3);
    test::fill_parameters(*model);
    const auto optimizer = make_zero<torch::optim::Adam>(
        model->parameters(), torch::optim::AdamOptions(0.1), dp);
    train(*model, *optimizer, 2, 3);
    const std::vector<int64_t> expected{2 * 12 * 4, 2 * 3 * 4, 0, 0};
    EXPECT_EQ(state_bytes(optimizer->state_dict(*model)), expected[self.rank]);
  });
}

class ZeroCheckpoint : public ::testing::Test {
 protected:
  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

/// Parameters and an optimizer that may be plain.
struct ZeroJob {
  ZeroJob(
      const ZeroCase& which,
      const mesh::DeviceMesh& mesh,
      std::optional<ZeroRedundancyOptimizerOptions> options)
      : dp(mesh) {
    if (options) {
      auto made = std::make_unique<ZeroRedundancyOptimizer>(
          model.groups(), which.make, dp, *options);
      zero = made.get();
      optimizer = std::move(made);
    } else {
      optimizer = which.make(model.groups());
    }
  }

  checkpoint::StateDicts state() {
    return {
        {"model", dtensor::module_state_dict(model, dp)},
        {"optimizer",
         zero ? zero->state_dict(model)
              : dtensor::optimizer_state_dict(*optimizer, model, dp)}};
  }

  void load(const fs::path& path) {
    auto dicts = state();
    checkpoint::load(path, dicts);
    if (zero) {
      zero->load_state_dict(model, dicts.at("optimizer"));
    } else {
      dtensor::load_optimizer_state_dict(
          *optimizer, model, dicts.at("optimizer"));
    }
  }

  ZeroModel model;
  mesh::DeviceMesh dp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  ZeroRedundancyOptimizer* zero = nullptr;
};

// From two ranks to any number, to the other partition, and from a plain
// optimizer and into one: training goes on as if nothing had happened.
TEST_F(ZeroCheckpoint, LoadsOnOtherNumbersOfRanksAndIntoPlainOptimizers) {
  using Options = std::optional<ZeroRedundancyOptimizerOptions>;
  const auto partitions = both_partitions();
  const std::vector<Options> all{partitions[0], partitions[1], std::nullopt};
  int64_t saved = 0;
  for (const auto& which : zero_cases()) {
    for (const auto& from : all) {
      const int64_t step = ++saved;
      run_ranks(2, [&](RankContext& self) {
        ZeroJob job(which, self.mesh({2}, {"dp"}), from);
        job.optimizer->param_groups()[1].options().set_lr(0.007);
        train(job.model, *job.optimizer, 0, 3);
        checkpoint::save(folder_, job.state(), {.step = step, .fsync = false});
      });
      for (const int ranks : {1, 2, 3, 4}) {
        run_ranks(ranks, [&](RankContext& self) {
          const auto dp = self.mesh({self.world_size}, {"dp"});
          ZeroJob straight(which, dp, std::nullopt);
          straight.optimizer->param_groups()[1].options().set_lr(0.007);
          train(straight.model, *straight.optimizer, 0, 6);
          for (const auto& to : all) {
            ZeroJob job(which, dp, to);
            job.load(folder_ / ("step-" + std::to_string(step)));
            train(job.model, *job.optimizer, 3, 6);
            expect_same_parameters(
                job.model, straight.model, which.name + " after loading");
            EXPECT_EQ(
                job.optimizer->param_groups()[1].options().get_lr(), 0.007);
          }
        });
      }
    }
  }
}

TEST(ZeroConsolidate, GivesOneRankThePlainState) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    for (const auto& [name, make] : zero_cases()) {
      for (const auto& options : both_partitions()) {
        ZeroModel model;
        ZeroModel plain;
        ZeroRedundancyOptimizer optimizer(model.groups(), make, dp, options);
        const auto expected = make(plain.groups());
        train(model, optimizer, 0, 3);
        train(plain, *expected, 0, 3);
        const auto state = optimizer.consolidate_state_dict(model, 1);
        const auto plain_state =
            dtensor::optimizer_state_dict(*expected, plain, dp);
        EXPECT_EQ(state.size(), self.rank == 1 ? plain_state.size() : 0U);
        for (const auto& [key, tensor] : state) {
          EXPECT_FALSE(dtensor::is_dtensor(tensor)) << key;
          EXPECT_TRUE(at::equal(tensor, dtensor::to_local(plain_state.at(key))))
              << name << " " << key;
        }
        // What was saved so goes back on all ranks.
        StateDict whole;
        for (const auto& [key, tensor] : plain_state) {
          whole[key] = dtensor::to_local(tensor);
        }
        ZeroModel resumed;
        ZeroRedundancyOptimizer fresh(resumed.groups(), make, dp, options);
        fresh.load_state_dict(resumed, whole);
        expect_same_state(fresh.state_dict(resumed), plain_state, name);
      }
    }
  });
}

TEST(ZeroConsolidate, GivesItToOneRankOfTheWholeMesh) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    torch::nn::Module model("model");
    model.register_parameter(
        "w",
        dtensor::distribute_tensor(
            test::wave({6, 4}, 0.1),
            mesh["tp"],
            {dtensor::Shard(0)},
            std::nullopt));
    for (const auto& options : both_partitions()) {
      const auto optimizer = make_zero<torch::optim::Adam>(
          model.parameters(),
          torch::optim::AdamOptions(0.1),
          mesh["dp"],
          options);
      const auto state = optimizer->consolidate_state_dict(model, 1);
      EXPECT_EQ(state.empty(), self.rank != 2);
      if (self.rank == 2) {
        EXPECT_EQ(state.at("state.w.exp_avg").sizes(), (at::IntArrayRef{6, 4}));
      }
    }
  });
}

TEST(ZeroStateErrors, NameTheKeyAndComeOnAllRanks) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    ZeroModel model;
    const auto optimizer = make_zero<torch::optim::Adam>(
        model.groups(), torch::optim::AdamOptions(0.1), dp);
    auto state = optimizer->state_dict(model);
    const auto load = [&] {
      return message_of_thrown<c10::ValueError>(
          [&] { optimizer->load_state_dict(model, state); });
    };
    state["state.wide.exp_avg"] = at::zeros({8, 5});
    EXPECT_THAT(
        load(),
        AllOf(
            HasSubstr("\"state.wide.exp_avg\""),
            HasSubstr("[8, 5]"),
            HasSubstr("[8, 6]")));
    state.erase("param_groups.bias.lr");
    EXPECT_THAT(load(), HasSubstr("\"param_groups.bias.lr\" is missing"));
    for (const int64_t to : {-1, 2}) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { optimizer->consolidate_state_dict(model, to); }),
          HasSubstr("no rank " + std::to_string(to)));
    }
    torch::nn::Linear other(2, 2);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { optimizer->state_dict(*other); }),
        HasSubstr("not a parameter of the module"));
    torch::serialize::OutputArchive archive;
    EXPECT_THAT(
        message_of_thrown<c10::NotImplementedError>(
            [&] { optimizer->save(archive); }),
        HasSubstr("state_dict()"));
    torch::serialize::InputArchive input;
    EXPECT_THAT(
        message_of_thrown<c10::NotImplementedError>(
            [&] { optimizer->load(input); }),
        HasSubstr("load_state_dict()"));
  });
}

TEST(ZeroStateErrors, NumbersOfTwoGroupsAreNotLoadedIntoOne) {
  for (const auto& options : both_partitions()) {
    run_ranks(3, [&](RankContext& self) {
      const auto dp = self.mesh({3}, {"dp"});
      ZeroModel model;
      const auto make =
          zero_case<torch::optim::AdamW>("", torch::optim::AdamWOptions(0.1))
              .make;
      ZeroRedundancyOptimizer two(model.groups(), make, dp, options);
      two.param_groups()[0].options().set_lr(0.5);
      train(model, two, 0, 1);
      const auto state = two.state_dict(model);
      test::ParamGroups one_group;
      one_group.emplace_back(model.parameters());
      ZeroRedundancyOptimizer one(std::move(one_group), make, dp, options);
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { one.load_state_dict(model, state); }),
          AllOf(HasSubstr("lr of \""), HasSubstr("group 0")));
    });
  }
}

// Before the first step the owner has no momentum to save; the other rank,
// which would, throws too.
TEST(ZeroStateErrors, OfOneRankAreThrownOnAll) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    torch::nn::Module model("model");
    model.register_parameter("w", test::wave({6, 4}, 0.1));
    const auto make = [&] {
      return make_zero<torch::optim::SGD>(
          model.parameters(),
          torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5),
          dp);
    };
    const auto optimizer = make();
    EXPECT_THAT(
        message_of_thrown<c10::NotImplementedError>(
            [&] { optimizer->state_dict(model); }),
        HasSubstr(self.rank == 0 ? "dampening" : "another replica"));
    set_zero_gradients(model, 0);
    optimizer->step();
    const auto state = optimizer->state_dict(model);
    EXPECT_EQ(
        dtensor::to_local(state.at("state.w.momentum_buffer")).numel(),
        self.rank == 0 ? 24 : 0);
  });
}

} // namespace
} // namespace weft::ddp
