// What a comm hook keeps, as rows of a checkpoint.
#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/load/load_part.h"
#include "checkpoint/store/store.h"
#include "data_parallel/comm_hooks/hook_state_rows.h"
#include "data_parallel/comm_hooks/post_local_sgd_hook.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::ddp {
namespace {

namespace fs = std::filesystem;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_equal(
    const data_parallel::CommHook::State& a,
    const data_parallel::CommHook::State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(b.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(b.at(name), tensor)) << name;
  }
}

TEST(HookStateRows, PackAnyTensors) {
  const data_parallel::CommHook::State state{
      {"empty", at::empty({0, 3}, at::kBFloat16)},
      {"iter", at::full({}, 7, at::kLong)},
      {"error.0", wave({3, 5}, 0.2)},
      {"strided", wave({4, 6}, 0.1, at::kFloat).t()}};
  expect_equal(
      data_parallel::unpack_hook_state(data_parallel::pack_hook_state(state)),
      state);
  expect_equal(
      data_parallel::unpack_hook_state(data_parallel::pack_hook_state({})), {});
}

TEST(HookStateRows, RefuseOtherBytes) {
  const auto packed = data_parallel::pack_hook_state({{"x", wave({8}, 0.1)}});
  const auto refused = [](const at::Tensor& bytes) {
    return message_of_thrown<c10::ValueError>(
        [&] { data_parallel::unpack_hook_state(bytes); });
  };
  EXPECT_THAT(refused(packed.narrow(0, 0, 4)), HasSubstr("too few"));
  EXPECT_THAT(
      refused(packed.narrow(0, 0, 20)), HasSubstr("header is truncated"));
  EXPECT_THAT(
      refused(packed.narrow(0, 0, packed.numel() - 1)),
      HasSubstr("values are truncated"));
  EXPECT_THAT(refused(wave({80}, 0.1)), HasSubstr("not bytes"));
  auto garbled = packed.clone();
  garbled.narrow(0, 8, 4).fill_('?');
  EXPECT_THAT(refused(garbled), HasSubstr("header is not a list"));
}

/// What pack_hook_state() would write before the values.
at::Tensor with_header(const std::string& text) {
  const uint64_t length = text.size();
  auto bytes = at::zeros(
      {static_cast<int64_t>(sizeof(length) + text.size() + 8)}, at::kByte);
  auto* to = bytes.mutable_data_ptr<uint8_t>();
  std::memcpy(to, &length, sizeof(length));
  std::memcpy(to + sizeof(length), text.data(), text.size());
  return bytes;
}

TEST(HookStateRows, RefuseHeadersThatAskForTooMuch) {
  for (const char* header :
       {R"([{"name": "x", "dtype": 6, "sizes": [4611686018427387904]}])",
        R"([{"name": "x", "dtype": 6, "sizes": [4294967296, 4294967296]}])",
        R"([{"name": "x", "dtype": 6, "sizes": [-1]}])",
        R"([{"name": "x", "dtype": 6, "sizes": [3]}])",
        R"([{"name": "x", "dtype": 1000, "sizes": [1]}])",
        R"([{"name": "x", "dtype": "6", "sizes": [1]}])",
        R"([{"name": 1, "dtype": 6, "sizes": [1]}])",
        R"([{"dtype": 6, "sizes": [1]}])",
        R"([7])"}) {
    SCOPED_TRACE(header);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { data_parallel::unpack_hook_state(with_header(header)); }),
        HasSubstr("not a comm hook state"));
  }
}

/// Trains some steps with PowerSGD; other data on each rank.
struct Training {
  explicit Training(const mesh::DeviceMesh& dp, double bucket_cap_mb = 1e-4)
      : model(std::make_shared<Mlp>(at::kFloat)),
        ddp(model, dp, {.bucket_cap_mb = bucket_cap_mb}),
        hook(std::make_shared<data_parallel::PowerSGDHook>(
            data_parallel::PowerSGDOptions{
                .start_powerSGD_iter = 2,
                .min_compression_rate = 1.1})),
        optimizer(model->parameters(), 0.05) {
    ddp.register_comm_hook(hook);
  }

  void run(int64_t rank, int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      const auto x = wave({4, 6}, 0.1 * step + static_cast<double>(rank));
      ddp(x.to(at::kFloat)).pow(2).mean().backward();
      optimizer.step();
    }
  }

  std::shared_ptr<Mlp> model;
  DistributedDataParallel<Mlp> ddp;
  std::shared_ptr<data_parallel::PowerSGDHook> hook;
  torch::optim::SGD optimizer;
};

TEST(HookStateRows, ResumeAHookToTheBit) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    Training whole(dp);
    whole.run(self.rank, 0, 8);

    Training first(dp);
    first.run(self.rank, 0, 5);
    const auto rows = first.ddp.comm_hook_state_dict();
    Training second(dp);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < second.model->parameters().size(); ++i) {
        second.model->parameters()[i].copy_(first.model->parameters()[i]);
      }
    }
    second.ddp.set_bucket_layout(first.ddp.bucket_names());
    second.ddp.load_comm_hook_state_dict(rows);
    second.run(self.rank, 5, 8);
    for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(
          second.model->parameters()[i], whole.model->parameters()[i]));
    }
  });
}

class HookStateInCheckpoints : public ::testing::Test {
 protected:
  // What docs/ddp.md shows.
  void save(const RankContext& self, Training& training, int64_t step) {
    checkpoint::save(
        folder_,
        {{"model", training.ddp.state_dict()},
         {"comm_hook", training.ddp.comm_hook_state_dict()}},
        {.step = step, .world = self.world});
  }
  void load(
      const RankContext& self,
      Training& training,
      const mesh::DeviceMesh& mesh,
      int64_t step) {
    const auto folder = checkpoint::step_path(folder_, step);
    const checkpoint::StateDicts state{{"model", training.ddp.state_dict()}};
    checkpoint::load(folder, state, {.world = self.world});
    training.ddp.load_comm_hook_state_dict(
        checkpoint::load_part(folder, "comm_hook", mesh));
  }

  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

std::vector<at::Tensor> copies_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : module.parameters()) {
    copies.push_back(parameter.detach().clone());
  }
  return copies;
}

// The state is of other sizes before the first step, in the steps that only
// average, and later.
TEST_F(HookStateInCheckpoints, ResumeInAnotherProcessToTheBit) {
  for (const int stop : {0, 1, 3, 6}) {
    SCOPED_TRACE(stop);
    std::vector<at::Tensor> whole;
    run_ranks(3, [&](RankContext& self) {
      const auto dp = self.mesh({3}, {"dp"});
      Training training(dp);
      training.run(self.rank, 0, stop);
      save(self, training, stop);
      training.run(self.rank, stop, 9);
      if (self.rank == 0) {
        whole = copies_of(*training.model);
      }
    });
    run_ranks(3, [&](RankContext& self) {
      const auto dp = self.mesh({3}, {"dp"});
      // Caps of its own: it takes over the buckets that were saved.
      Training training(dp, /*bucket_cap_mb=*/stop > 0 ? 25 : 1e-4);
      load(self, training, dp, stop);
      training.run(self.rank, stop, 9);
      const auto resumed = copies_of(*training.model);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(at::equal(resumed[i], whole[i])) << i;
      }
    });
  }
}

TEST_F(HookStateInCheckpoints, OfRanksOfTheirOwnAreRefusedOnOtherMeshes) {
  run_ranks(2, [&](RankContext& self) {
    Training training(self.mesh({2}, {"dp"}));
    training.run(self.rank, 0, 5);
    save(self, training, 5);
  });
  run_ranks(3, [&](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    Training training(dp);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { load(self, training, dp, 5); }),
        AllOf(
            HasSubstr("saved on dp=2"),
            HasSubstr("cannot be resumed on dp=3"),
            HasSubstr("3 entries of its own, such as error."),
            HasSubstr("do not load the hook's state")));
    training.run(self.rank, 5, 7); // as if it had not been tried
  });
}

TEST_F(HookStateInCheckpoints, AlikeOnAllRanksGoesOnOnAnyMesh) {
  const auto hook_of = [](const mesh::DeviceMesh& dp) {
    return data_parallel::post_localSGD_hook(
        {.subgroup = dp.group("dp"), .start_localSGD_iter = 1000});
  };
  const auto step = [](DistributedDataParallel<Mlp>& ddp, int64_t rank) {
    ddp(wave({4, 6}, 0.3 * static_cast<double>(rank))).sum().backward();
  };
  run_ranks(2, [&](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    DistributedDataParallel<Mlp> ddp(std::make_shared<Mlp>(), dp);
    ddp.register_comm_hook(hook_of(dp));
    step(ddp, self.rank);
    step(ddp, self.rank);
    checkpoint::save(
        folder_,
        {{"comm_hook", ddp.comm_hook_state_dict()}},
        {.step = 2, .world = self.world});
  });
  run_ranks(3, [&](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    DistributedDataParallel<Mlp> ddp(std::make_shared<Mlp>(), dp);
    ddp.register_comm_hook(hook_of(dp));
    ddp.load_comm_hook_state_dict(checkpoint::load_part(
        checkpoint::step_path(folder_, 2), "comm_hook", dp));
    EXPECT_EQ(ddp.comm_hook()->state_dict().at("iter").item<int64_t>(), 2);
    step(ddp, self.rank);
    EXPECT_EQ(ddp.comm_hook()->state_dict().at("iter").item<int64_t>(), 3);
  });
}

TEST_F(HookStateInCheckpoints, AreRefusedOnceThereAreOtherBuckets) {
  run_ranks(2, [&](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Training training(dp);
    training.run(self.rank, 0, 4);
    save(self, training, 4);
    load(self, training, dp, 4); // the same buckets
    Training other(dp, 25);
    other.run(self.rank, 0, 4);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { load(self, other, dp, 4); }),
        HasSubstr("Load the state before the first backward"));
  });
}

TEST_F(HookStateInCheckpoints, AreAPartThatThereMustBe) {
  run_ranks(2, [&](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    Training training(dp);
    checkpoint::save(
        folder_,
        {{"model", training.ddp.state_dict()}},
        {.step = 1, .world = self.world});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          checkpoint::load_part(
              checkpoint::step_path(folder_, 1), "comm_hook", dp);
        }),
        AllOf(HasSubstr("no part \"comm_hook\""), HasSubstr("model")));
  });
}

TEST(HookStateRows, OfNoHookAreRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    DistributedDataParallel ddp(std::make_shared<Mlp>(), dp);
    EXPECT_TRUE(ddp.comm_hook_state_dict().empty());
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp.load_comm_hook_state_dict({}); }),
        HasSubstr("no hook is registered"));
  });
}

} // namespace
} // namespace weft::ddp
