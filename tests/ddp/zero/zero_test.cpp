// The sharded optimizer computes what the plain one does.
#include <algorithm>
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/join/join.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/ddp/zero/zero_cases.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using test::all_zero_options;
using test::entries_named;
using test::expect_same_parameters;
using test::Mlp;
using test::ParamGroups;
using test::RankContext;
using test::run_ranks;
using test::set_zero_gradients;
using test::wave;
using test::zero_cases;
using test::ZeroModel;

class Zero : public ::testing::TestWithParam<int> {};

TEST_P(Zero, EqualsThePlainOptimizer) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto dp = self.mesh({self.world_size}, {"dp"});
    for (const auto& [name, make] : zero_cases()) {
      for (const auto& options : all_zero_options()) {
        const auto what = name + " " + test::zero_options_name(options);
        ZeroModel model;
        ZeroModel plain;
        ZeroRedundancyOptimizer optimizer(model.groups(), make, dp, options);
        const auto expected = make(plain.groups());
        for (int64_t step = 0; step < 4; ++step) {
          for (auto* each :
               {static_cast<torch::optim::Optimizer*>(&optimizer),
                expected.get()}) {
            each->zero_grad();
            each->param_groups()[1].options().set_lr(0.02 / (1.0 + step));
          }
          set_zero_gradients(model, step);
          set_zero_gradients(plain, step);
          optimizer.step();
          expected->step();
          if (options.overlap_with_forward) {
            optimizer.wait_for_parameters();
          }
          expect_same_parameters(
              model, plain, what + " step " + std::to_string(step));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Zero,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

struct Grid {
  int64_t dp;
  int64_t tp;
  bool is_dp_first;
};
std::ostream& operator<<(std::ostream& out, const Grid& grid) {
  return out << "dp" << grid.dp << "tp" << grid.tp
             << (grid.is_dp_first ? "" : "reversed");
}

/// Parameters on tp as plans place them, and as they seldom do.
struct PlacedModel : torch::nn::Module {
  explicit PlacedModel(const mesh::DeviceMesh& tp) {
    std::vector<int64_t> rows(tp.size(), 0);
    rows.back() = 6;
    const std::vector<std::pair<std::vector<int64_t>, dtensor::Placement>> all{
        {{8, 6}, Shard(0)},
        {{6, 8}, Shard(1)},
        {{7, 5}, Shard(0)},
        {{9}, Shard(0)},
        {{1, 3}, Shard(0)},
        {{5, 3}, Replicate()},
        {{6, 2}, Shard(0, rows)},
        {{6}, Shard(0, rows)}};
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [sizes, placement] = all[i];
      register_parameter(
          "p" + std::to_string(i),
          dtensor::distribute_tensor(
              wave(sizes, static_cast<double>(i)),
              tp,
              {placement},
              std::nullopt));
    }
    register_parameter("plain", wave({4, 3}, 0.2));
  }

  void set_gradients(int64_t step) {
    double phase = 0.17 * static_cast<double>(step);
    for (auto& parameter : parameters()) {
      auto gradient = wave(parameter.sizes(), phase += 1.3);
      if (dtensor::is_dtensor(parameter)) {
        const auto& spec = dtensor::spec_of(parameter);
        gradient = dtensor::distribute_tensor(
            gradient, spec.mesh(), spec.placements(), std::nullopt);
      }
      parameter.mutable_grad() = gradient;
    }
  }
};

class ZeroOfDTensors : public ::testing::TestWithParam<Grid> {};

TEST_P(ZeroOfDTensors, EqualsThePlainOptimizerAndItsState) {
  const auto grid = GetParam();
  run_ranks(static_cast<int>(grid.dp * grid.tp), [&](RankContext& self) {
    const auto mesh = grid.is_dp_first
                          ? self.mesh({grid.dp, grid.tp}, {"dp", "tp"})
                          : self.mesh({grid.tp, grid.dp}, {"tp", "dp"});
    for (const auto& [name, make] : zero_cases()) {
      for (const auto& options : all_zero_options()) {
        const auto what = name + " " + test::zero_options_name(options);
        PlacedModel model(mesh["tp"]);
        PlacedModel plain(mesh["tp"]);
        ParamGroups groups;
        groups.emplace_back(model.parameters());
        ParamGroups plain_groups;
        plain_groups.emplace_back(plain.parameters());
        ZeroRedundancyOptimizer optimizer(groups, make, mesh["dp"], options);
        const auto expected = make(plain_groups);
        for (int64_t step = 0; step < 3; ++step) {
          model.set_gradients(step);
          plain.set_gradients(step);
          optimizer.step();
          expected->step();
        }
        optimizer.wait_for_parameters();
        expect_same_parameters(model, plain, what);
        const auto state = optimizer.state_dict(model);
        const auto plain_state =
            dtensor::optimizer_state_dict(*expected, plain, mesh);
        ASSERT_EQ(state.size(), plain_state.size());
        for (const auto& [key, tensor] : plain_state) {
          ASSERT_TRUE(state.contains(key)) << what << " " << key;
          EXPECT_EQ(state.at(key).scalar_type(), tensor.scalar_type());
          EXPECT_TRUE(at::equal(
              dtensor::full_tensor(state.at(key)),
              dtensor::full_tensor(tensor)))
              << what << " " << key << " " << dtensor::describe(state.at(key));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    ZeroOfDTensors,
    ::testing::Values(
        Grid{2, 2, true},
        Grid{2, 2, false},
        Grid{3, 1, true},
        Grid{1, 2, true}),
    ::testing::PrintToStringParamName());

at::Tensor loss_of(const at::Tensor& output) {
  return output.square().mean();
}

/// Models that call their layers through their hooks.
struct Blocks : torch::nn::Module {
  Blocks()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        second(register_module("second", torch::nn::Linear(8, 3))) {
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return dtensor::call(second, at::tanh(dtensor::call(first, x)));
  }
  torch::nn::Linear first, second;
};

at::Tensor batch_of(int64_t rank, int64_t step) {
  return wave({4, 6}, static_cast<double>(3 * step + 11 * rank), at::kFloat);
}

// Clipping happens between backward and the update, and a scheduler changes the
// options of the outer optimizer's groups.
TEST(ZeroInTraining, EqualsThePlainOptimizerUnderDdp) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    for (const auto& options : all_zero_options()) {
      const auto model = std::make_shared<Blocks>();
      const auto plain = std::make_shared<Blocks>();
      DistributedDataParallel<Blocks> ddp(model, dp);
      DistributedDataParallel<Blocks> plain_ddp(plain, dp);
      const auto adamw = torch::optim::AdamWOptions(0.05);
      const auto optimizer = make_zero<torch::optim::AdamW>(
          model->parameters(), adamw, dp, options);
      torch::optim::AdamW expected(plain->parameters(), adamw);
      optimizer->before_update(
          [&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1); });
      optimizer->wait_before_forward(*model->first);
      optimizer->wait_before_forward(*model->second);
      torch::optim::StepLR scheduler(*optimizer, 2, 0.5);
      torch::optim::StepLR plain_scheduler(expected, 2, 0.5);
      for (int64_t step = 0; step < 5; ++step) {
        optimizer->zero_grad();
        loss_of(ddp(batch_of(self.rank, step))).backward();
        optimizer->step();
        scheduler.step();

        expected.zero_grad();
        loss_of(plain_ddp(batch_of(self.rank, step))).backward();
        torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
        expected.step();
        plain_scheduler.step();
      }
      optimizer->wait_for_parameters();
      expect_same_parameters(*model, *plain, test::zero_options_name(options));
    }
  });
}

// The first rank steps only when the second one's step has returned: it cannot
// have waited for the first one's part.
TEST(ZeroOverlap, StepReturnsBeforeTheOthersHaveStepped) {
  std::atomic<bool> has_second_returned = false;
  run_ranks(2, [&](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Mlp model;
    Mlp plain;
    const auto sgd = torch::optim::SGDOptions(0.1);
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(), sgd, dp, {.overlap_with_forward = true});
    torch::optim::SGD expected(plain.parameters(), sgd);
    set_zero_gradients(model, 2);
    set_zero_gradients(plain, 2);
    while (self.rank == 0 && !has_second_returned) {
      std::this_thread::yield();
    }
    optimizer->step();
    has_second_returned = has_second_returned || self.rank == 1;
    expected.step();
    // Only what the module has is waited for, and then the rest.
    optimizer->wait_for_parameters(*model.b);
    expect_same_parameters(*model.b, *plain.b, "b");
    optimizer->wait_for_parameters();
    expect_same_parameters(model, plain, "all");
  });
}

TEST(ZeroOverlap, TheNextStepWaitsByItself) {
  run_ranks(3, [&](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    Mlp model;
    Mlp plain;
    const auto adam = torch::optim::AdamOptions(0.1);
    const auto optimizer = make_zero<torch::optim::Adam>(
        model.parameters(), adam, dp, {.overlap_with_forward = true});
    torch::optim::Adam expected(plain.parameters(), adam);
    for (int64_t step = 0; step < 3; ++step) {
      set_zero_gradients(model, step);
      set_zero_gradients(plain, step);
      optimizer->step();
      expected.step();
    }
    optimizer->wait_for_parameters();
    expect_same_parameters(model, plain, "all");
  });
}

TEST(ZeroViews, ShareOneBufferAndSendNoCopies) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Mlp model;
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(),
        torch::optim::SGDOptions(0.1),
        dp,
        {.parameters_as_bucket_view = true});
    const auto first = model.parameters().front();
    for (const auto& parameter : model.parameters()) {
      EXPECT_TRUE(parameter.is_alias_of(first));
    }
    // Memory that comes later is moved into the buffer.
    Mlp plain;
    model.a->weight.set_data(at::ones({8, 6}, at::kDouble));
    plain.a->weight.set_data(at::ones({8, 6}, at::kDouble));
    torch::optim::SGD expected(
        plain.parameters(), torch::optim::SGDOptions(0.1));
    set_zero_gradients(model, 0);
    set_zero_gradients(plain, 0);
    optimizer->step();
    expected.step();
    expect_same_parameters(model, plain, "after set_data");
    EXPECT_TRUE(model.a->weight.is_alias_of(model.b->weight));
    const auto entries = entries_named(dp.group("dp"), "zero bucket");
    ASSERT_EQ(entries.size(), 1U);
    EXPECT_EQ(entries[0].bytes, 8 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3));
  });
}

TEST(ZeroSplit, TakesMemoryThatParametersGotLater) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Mlp model;
    Mlp plain;
    const auto sgd = torch::optim::SGDOptions(0.1);
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(), sgd, dp, {.partition = ZeroPartition::kEvenSplit});
    torch::optim::SGD expected(plain.parameters(), sgd);
    model.a->weight.set_data(at::ones({8, 6}, at::kDouble));
    plain.a->weight.set_data(at::ones({8, 6}, at::kDouble));
    set_zero_gradients(model, 0);
    set_zero_gradients(plain, 0);
    optimizer->step();
    expected.step();
    expect_same_parameters(model, plain, "after set_data");
  });
}

TEST(ZeroGroups, MayBeAddedBetweenSteps) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    for (const auto& options : all_zero_options()) {
      Mlp model;
      Mlp plain;
      const auto adamw = torch::optim::AdamWOptions(0.1);
      const auto optimizer = make_zero<torch::optim::AdamW>(
          model.a->parameters(), adamw, dp, options);
      torch::optim::AdamW expected(plain.a->parameters(), adamw);
      for (int64_t step = 0; step < 4; ++step) {
        if (step == 2) {
          optimizer->add_param_group({model.b->parameters()});
          expected.add_param_group({plain.b->parameters()});
          optimizer->param_groups()[1].options().set_lr(0.3);
          expected.param_groups()[1].options().set_lr(0.3);
        }
        set_zero_gradients(model, step);
        set_zero_gradients(plain, step);
        optimizer->step();
        expected.step();
      }
      optimizer->wait_for_parameters();
      expect_same_parameters(model, plain, test::zero_options_name(options));
    }
  });
}

TEST(ZeroClosures, AreCalledOnceWithGradients) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Mlp model;
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.1), dp);
    int calls = 0;
    const at::NoGradGuard no_grad;
    const auto before = model.c->bias.detach().clone();
    const auto loss = optimizer->step([&] {
      ++calls;
      const auto result = loss_of(model.forward(wave({2, 6}, 0.1)));
      result.backward();
      return result;
    });
    EXPECT_EQ(calls, 1);
    EXPECT_GT(loss.item<double>(), 0.0);
    EXPECT_FALSE(at::equal(before, model.c->bias));
  });
}

// A rank without inputs has the gradients that DDP leaves it, and updates its
// part from the hook.
TEST(ZeroJoin, TheMainHookStepsAsTheOthersDo) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    for (const auto& options : all_zero_options()) {
      Mlp model;
      Mlp plain;
      const auto adam = torch::optim::AdamOptions(0.1);
      const auto optimizer =
          make_zero<torch::optim::Adam>(model.parameters(), adam, dp, options);
      torch::optim::Adam expected(plain.parameters(), adam);
      int updates = 0;
      optimizer->before_update([&] {
        ++updates;
        for (const auto& parameter : model.parameters()) {
          if (parameter.grad().defined()) {
            parameter.grad().mul_(0.5);
          }
        }
      });
      const auto hook = optimizer->join_hook({});
      for (int64_t step = 0; step < 4; ++step) {
        set_zero_gradients(model, step);
        set_zero_gradients(plain, step);
        for (const auto& parameter : plain.parameters()) {
          if (parameter.grad().defined()) {
            parameter.grad().mul_(0.5);
          }
        }
        if (step <= self.rank) {
          optimizer->step();
        } else {
          hook->main_hook();
        }
        expected.step();
      }
      hook->post_hook(self.rank == 2);
      EXPECT_EQ(updates, 4);
      expect_same_parameters(model, plain, test::zero_options_name(options));
    }
    Mlp model;
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.1), dp);
    EXPECT_EQ(optimizer->join_process_group().name(), dp.group("dp").name());
    EXPECT_EQ(optimizer->join_device(), c10::Device(c10::kCPU));
    EXPECT_EQ(optimizer->join_model_parallel_mesh().ndim(), 0);
  });
}

/// One model that sees what all replicas with inputs do; gradients are divided
/// by all replicas.
void train_on_all(
    Blocks& model,
    torch::optim::Optimizer& optimizer,
    const std::vector<int64_t>& counts) {
  const auto most = *std::max_element(counts.begin(), counts.end());
  for (int64_t step = 0; step < most; ++step) {
    optimizer.zero_grad();
    for (int64_t rank = 0; rank < static_cast<int64_t>(counts.size()); ++rank) {
      if (step < counts[rank]) {
        (loss_of(model.forward(batch_of(rank, step))) /
         static_cast<double>(counts.size()))
            .backward();
      }
    }
    torch::nn::utils::clip_grad_norm_(model.parameters(), 0.1);
    optimizer.step();
  }
}

// A plain optimizer would miss the updates that its rank shadows.
TEST(ZeroJoin, TrainsWithUnevenInputsAsOneRank) {
  const std::vector<int64_t> counts{5, 0, 3};
  run_ranks(3, [&](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    const auto adamw = torch::optim::AdamWOptions(0.05);
    Blocks plain;
    torch::optim::AdamW expected(plain.parameters(), adamw);
    train_on_all(plain, expected, counts);
    for (const auto& options : all_zero_options()) {
      const auto model = std::make_shared<Blocks>();
      DistributedDataParallel<Blocks> ddp(model, dp);
      const auto optimizer = make_zero<torch::optim::AdamW>(
          model->parameters(), adamw, dp, options);
      optimizer->before_update(
          [&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1); });
      optimizer->wait_before_forward(*model);
      data_parallel::Join join({&ddp, optimizer.get()});
      join.run([&] {
        for (int64_t step = 0; step < counts[self.rank]; ++step) {
          optimizer->zero_grad();
          loss_of(ddp(batch_of(self.rank, step))).backward();
          optimizer->step();
        }
      });
      SCOPED_TRACE(test::zero_options_name(options));
      test::expect_all_close(model->parameters(), plain.parameters(), 1e-5);
      const auto steps = optimizer->state_dict(*model);
      EXPECT_EQ(
          dtensor::to_local(steps.at("state.first.weight.step"))
              .item<int64_t>(),
          5);
    }
  });
}

TEST(ZeroJoin, TheRowIsThatOfTheParameters) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    PlacedModel model(mesh["tp"]);
    const auto optimizer = make_zero<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.1), mesh["dp"]);
    EXPECT_TRUE(optimizer->join_model_parallel_mesh() == mesh["tp"]);
  });
}

// libtorch lists a tied weight once for each module that has it.
TEST(ZeroTest, ATiedWeightIsOneParameter) {
  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& tied)
        : weight(register_parameter("weight", tied)),
          bias(register_parameter("bias", wave({5}, 0.3))) {}
    at::Tensor weight, bias;
  };
  struct Tied : torch::nn::Module {
    Tied()
        : weight(register_parameter("weight", wave({5, 3}, 0.1))),
          head(register_module("head", std::make_shared<Head>(weight))) {}
    at::Tensor loss(const at::Tensor& x) {
      return at::linear(at::linear(x, head->weight, head->bias), weight.t())
          .pow(2)
          .sum();
    }
    at::Tensor weight;
    std::shared_ptr<Head> head;
  };
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Tied model;
    Tied plain;
    ASSERT_EQ(model.parameters().size(), 3U);
    const auto options = torch::optim::SGDOptions(0.01).momentum(0.9);
    const auto optimizer =
        make_zero<torch::optim::SGD>(model.parameters(), options, dp);
    torch::optim::SGD expected({plain.weight, plain.head->bias}, options);
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      expected.zero_grad();
      const auto x = wave({4, 3}, 0.2 + step);
      model.loss(x).backward();
      plain.loss(x).backward();
      optimizer->step();
      expected.step();
      EXPECT_TRUE(at::equal(model.weight, plain.weight)) << step;
      EXPECT_TRUE(at::equal(model.head->bias, plain.head->bias)) << step;
    }
  });
}

} // namespace
} // namespace weft::ddp
