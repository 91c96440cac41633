// A loop of the user's own changes what is registered, in each gap of a step,
// while a group is lost and comes back: all groups have the same bits, or all
// are told what differs.

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "elastic/manager.h"
#include "elastic/pure_distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/elastic/launcher.h"

namespace weft::elastic {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kUserBatch = 6;
constexpr int64_t kUserSteps = 40;
constexpr int64_t kLossStep = 8;
constexpr lighthouse::GroupId kNextLife = 3;

enum class Gap {
  kBeforeBegin,
  kAfterBegin,
  kBeforeCommit,
  kAfterCommit,
  kAfterUpdate
};

/// What a user's loop has.
struct UserLoop {
  explicit UserLoop(bool has_momentum) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(1);
    net = std::make_shared<torch::nn::LinearImpl>(3, 2);
    if (has_momentum) {
      optimizer = std::make_unique<torch::optim::SGD>(
          net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
    } else {
      optimizer =
          std::make_unique<torch::optim::AdamW>(net->parameters(), 0.01);
    }
  }

  std::shared_ptr<torch::nn::LinearImpl> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  /// A registered tensor that the loss depends on.
  at::Tensor scale = at::ones({});
  /// Numbers that no group registers.
  int64_t own_calls = 0;
  Manager* manager = nullptr;

  template <class Options>
  Options& options() {
    return static_cast<Options&>(optimizer->param_groups()[0].options());
  }
};

/// Something that a loop changes in each step.
struct Change {
  std::string name;
  std::function<void(UserLoop&, int64_t step)> make;
  bool has_momentum = false;
  /// The refusal that names it, if the late group cannot know it.
  std::string refusal = {};
};

std::vector<Change> changes() {
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  const auto number = [](int64_t step) {
    return 0.02 + 0.01 * std::sin(static_cast<double>(step));
  };
  return {
      {"Rate",
       [=](UserLoop& loop, int64_t step) {
         loop.optimizer->param_groups()[0].options().set_lr(number(step));
       }},
      {"RateByFactor",
       [](UserLoop& loop, int64_t) {
         auto& options = loop.options<AdamWOptions>();
         options.lr(options.lr() * 0.99);
       }},
      {"WeightDecay",
       [=](UserLoop& loop, int64_t step) {
         loop.options<AdamWOptions>().weight_decay(number(step));
       }},
      {"Betas",
       [=](UserLoop& loop, int64_t step) {
         loop.options<AdamWOptions>().betas({0.5 + number(step), 0.99});
       }},
      {"Momentum",
       [=](UserLoop& loop, int64_t step) {
         loop.options<SGDOptions>().momentum(0.5 + number(step));
       },
       true},
      {"Tensor",
       [=](UserLoop& loop, int64_t step) { loop.scale.fill_(number(step)); }},
      {"Weights",
       [](UserLoop& loop, int64_t) {
         const at::NoGradGuard no_grad;
         loop.net->weight.mul_(0.999);
       }},
      {"Text",
       [](UserLoop& loop, int64_t step) {
         loop.manager->register_text("phase", step < 4 ? "warmup" : "main");
       },
       false,
       "it has \"phase warmup\", and they have \"phase main\""},
      {"SchedulerThatIsNotRegistered",
       [](UserLoop& loop, int64_t) {
         if (++loop.own_calls % 5 == 0) {
           auto& options = loop.options<AdamWOptions>();
           options.lr(options.lr() * 0.5);
         }
       },
       false,
       "optimizer group 0 lr"},
  };
}

/// What the groups ended with.
struct UserRecord {
  std::mutex mutex;
  std::map<lighthouse::GroupId, at::Tensor> weights;
  std::map<lighthouse::GroupId, std::string> errors;
  std::atomic<bool> is_back = false;
};

struct UserLost {};

void run_loop(
    std::shared_ptr<LighthouseLink> link,
    const Change& change,
    Gap gap,
    UserRecord& record) {
  at::set_num_threads(1);
  const auto id = link->group().id;
  UserLoop loop(change.has_momentum);
  Manager manager(mesh::World::from_store({}, 0, 1), std::move(link));
  loop.manager = &manager;
  manager.register_text("phase", "warmup");
  manager.register_state("scale", [&] {
    return dtensor::StateDict{{"scale", loop.scale}};
  });
  manager.register_module("net", loop.net);
  manager.register_optimizer("optimizer", *loop.optimizer, loop.net);
  const PureDistributedDataParallel ddp(manager, loop.net);
  const auto change_in = [&](Gap at, int64_t step) {
    if (at == gap) {
      change.make(loop, step);
    }
  };
  while (manager.step() < kUserSteps) {
    change_in(Gap::kBeforeBegin, manager.step());
    auto step = manager.begin_step();
    const auto number = step.number();
    record.is_back = record.is_back || id == kNextLife;
    change_in(Gap::kAfterBegin, number);
    loop.optimizer->zero_grad();
    const auto [begin, end] = step.share(kUserBatch);
    const auto x = at::sin(at::arange(3 * kUserBatch, at::kFloat) + number)
                       .view({kUserBatch, 3})
                       .slice(0, begin, end);
    (loop.net->forward(x).pow(2).sum() * loop.scale / kUserBatch).backward();
    change_in(Gap::kBeforeCommit, number);
    if (id == 2 && number == kLossStep) {
      throw UserLost();
    }
    if (!record.is_back && number > kUserSteps / 2) { // Let it come back.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (step.commit()) {
      change_in(Gap::kAfterCommit, number);
      loop.optimizer->step();
      change_in(Gap::kAfterUpdate, number);
    }
  }
  const std::lock_guard lock(record.mutex);
  record.weights[id] = loop.net->weight.detach().clone();
}

/// A life of a group. Returns true if it was lost.
bool run_life(
    test::Launcher& launcher,
    int worker,
    lighthouse::GroupId id,
    const Change& change,
    Gap gap,
    UserRecord& record) {
  bool is_lost = false;
  try {
    run_loop(launcher.connect(worker, id), change, gap, record);
  } catch (const UserLost&) {
    is_lost = true;
  } catch (const mesh::DisagreementError& error) {
    is_lost = true;
    const std::lock_guard lock(record.mutex);
    record.errors[id] = error.what_without_backtrace();
  }
  if (is_lost) {
    launcher.lose(id, "exit code 9");
  }
  return is_lost;
}

struct ElasticChanges : ::testing::TestWithParam<std::tuple<Change, Gap>> {};

TEST_P(ElasticChanges, GiveAllGroupsTheSameBitsOrAreRefusedByName) {
  const auto& [change, gap] = GetParam();
  test::Launcher launcher(2);
  UserRecord record;
  std::thread first([&] { run_life(launcher, 0, 1, change, gap, record); });
  std::thread second([&] {
    if (run_life(launcher, 1, 2, change, gap, record)) {
      run_life(launcher, 1, kNextLife, change, gap, record);
    }
    record.is_back = true;
  });
  first.join();
  second.join();
  if (change.refusal.empty()) {
    EXPECT_THAT(record.errors, IsEmpty());
    ASSERT_THAT(record.weights, SizeIs(2));
    EXPECT_TRUE(at::equal(record.weights.at(1), record.weights.at(kNextLife)));
    return;
  }
  for (const auto& [id, error] : record.errors) {
    EXPECT_THAT(error, HasSubstr(change.refusal));
  }
  // A scheduler that counts alike by chance, and a text that is set in time,
  // are no difference.
  if (record.errors.empty()) {
    ASSERT_THAT(record.weights, SizeIs(2));
    EXPECT_TRUE(at::equal(record.weights.at(1), record.weights.at(kNextLife)));
  }
}

std::string name_of_change(
    const ::testing::TestParamInfo<std::tuple<Change, Gap>>& info) {
  constexpr const char* kNames[] = {
      "BeforeBegin",
      "AfterBegin",
      "BeforeCommit",
      "AfterCommit",
      "AfterUpdate"};
  const auto& [change, gap] = info.param;
  return change.name + kNames[static_cast<int>(gap)];
}

INSTANTIATE_TEST_SUITE_P(
    OfEachGap,
    ElasticChanges,
    ::testing::Combine(
        ::testing::ValuesIn(changes()),
        ::testing::Values(
            Gap::kBeforeBegin,
            Gap::kAfterBegin,
            Gap::kBeforeCommit,
            Gap::kAfterCommit,
            Gap::kAfterUpdate)),
    name_of_change);

} // namespace
} // namespace weft::elastic
