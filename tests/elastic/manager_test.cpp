#include "elastic/manager.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "elastic/pure_distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/elastic/launcher.h"
#include "tests/support/expect_error.h"

namespace weft::elastic {
namespace {

using ::testing::HasSubstr;
using weft::test::message_of_thrown;

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 60;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 1));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};

/// The seed is that of the process, which groups share here.
std::shared_ptr<Net> make_net() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  return std::make_shared<Net>();
}

/// Registers an object under a lock, which shows ThreadSanitizer that libtorch
/// orders what its serialization shares between threads.
std::mutex serialization;
template <class T>
void register_locked(Manager& manager, std::string name, T& object) {
  manager.register_state(
      std::move(name),
      [&object] {
        const std::lock_guard lock(serialization);
        std::ostringstream out;
        torch::save(object, out);
        return std::move(out).str();
      },
      [&object](const std::string& bytes) {
        const std::lock_guard lock(serialization);
        std::istringstream in(bytes);
        torch::load(object, in);
      });
}

at::Tensor samples_of(int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(step + 100));
  return at::randn({kBatch, 4}, generator);
}

/// The loss of some samples of a step, as their part of that of the batch.
at::Tensor loss_of(Net& net, int64_t step, int64_t begin, int64_t end) {
  const auto x = samples_of(step).slice(0, begin, end);
  const auto y = net.second(torch::tanh(net.first(x)));
  return (y - x.sum(1, true)).pow(2).sum() / kBatch;
}

std::vector<at::Tensor> copies_of(const Net& net) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) {
    result.push_back(parameter.detach().clone());
  }
  return result;
}

/// The weights that one process has after all steps.
std::vector<at::Tensor> undisturbed() {
  auto net = make_net();
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(*net, step, 0, kBatch).backward();
    optimizer.step();
  }
  return copies_of(*net);
}

/// Ends a group as if its process had died.
struct Lost {};

/// A moment of a step at which a group may be lost.
enum class Point { kBeforeBackward, kBeforeCommit, kAfterCommit };

struct Disturbance {
  /// Called by each group at each point of a step; one that returns true ends
  /// the group there.
  std::function<bool(GroupId, int64_t step, Point)> ends =
      [](GroupId, int64_t, Point) { return false; };
};

/// What the groups did, over all.
struct Record {
  std::mutex mutex;
  /// The weights of each group at its end.
  std::map<GroupId, std::vector<at::Tensor>> weights;
  /// The samples that were applied, by step.
  std::map<int64_t, std::set<std::pair<int64_t, int64_t>>> applied;
  /// The samples whose gradients a group had given away when it ended.
  std::map<int64_t, std::pair<int64_t, int64_t>> given_away;
  std::map<GroupId, int64_t> epochs;
};

/// A group that trains to the end, or until the disturbance ends it.
void train(
    std::shared_ptr<LighthouseLink> link,
    const Disturbance& disturbance,
    Record& record) {
  at::set_num_threads(1);
  const auto id = link->group();
  auto net = make_net();
  if (id > 3) { // A newcomer has nothing of its own.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.zero_();
    }
  }
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  Manager manager(mesh::World::from_store({}, 0, 1), std::move(link));
  register_locked(manager, "net", net);
  register_locked(manager, "optimizer", optimizer);
  const PureDistributedDataParallel ddp(manager, net);
  while (manager.step() < kSteps) {
    auto step = manager.begin_step();
    optimizer.zero_grad();
    const auto [begin, end] = step.share(kBatch);
    if (disturbance.ends(id, step.number(), Point::kBeforeBackward)) {
      throw Lost();
    }
    loss_of(*net, step.number(), begin, end).backward();
    if (disturbance.ends(id, step.number(), Point::kBeforeCommit)) {
      const std::lock_guard lock(record.mutex);
      record.given_away[step.number()] = {begin, end};
      throw Lost();
    }
    if (step.commit()) {
      if (disturbance.ends(id, step.number(), Point::kAfterCommit)) {
        const std::lock_guard lock(record.mutex);
        record.given_away[step.number()] = {begin, end};
        throw Lost();
      }
      optimizer.step();
      const std::lock_guard lock(record.mutex);
      record.applied[step.number()].emplace(begin, end);
    }
  }
  const std::lock_guard lock(record.mutex);
  record.weights[id] = copies_of(*net);
  record.epochs[id] = manager.epochs();
}

void expect_close(
    const std::vector<at::Tensor>& one,
    const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_LE((one[i] - other[i]).abs().max().item<float>(), 1e-5);
  }
}

/// Every step was applied with each of its samples once, by the same division.
void expect_each_sample_once(const Record& record) {
  EXPECT_EQ(std::ssize(record.applied), kSteps);
  for (auto [step, parts] : record.applied) {
    int64_t covered = 0;
    for (const auto& [begin, end] : parts) {
      covered += end - begin;
    }
    if (covered < kBatch && record.given_away.contains(step)) {
      parts.insert(record.given_away.at(step)); // The others had them all.
    }
    int64_t next = 0;
    for (const auto& [begin, end] : parts) {
      EXPECT_EQ(begin, next) << "step " << step;
      next = end;
    }
    EXPECT_EQ(next, kBatch) << "step " << step;
  }
}

TEST(Manager, GroupsTrainAsOneProcessWould) {
  test::Launcher launcher(3);
  Record record;
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      train(launcher.connect(worker, worker + 1), {}, record);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const auto expected = undisturbed();
  for (const auto& [id, weights] : record.weights) {
    expect_close(weights, expected);
  }
  EXPECT_EQ(std::ssize(record.weights), 3);
  expect_each_sample_once(record);
}

/// Three groups, of which one is lost at a point of step 10. If it `returns`, a
/// new life of it begins at once.
void lose_a_group(GroupId lost, Point point, bool returns) {
  test::Launcher launcher(3);
  Record record;
  std::thread newcomer;
  std::atomic<bool> has_come = false;
  Disturbance disturbance;
  disturbance.ends = [&](GroupId id, int64_t step, Point at) {
    if (returns && at == Point::kBeforeCommit && step >= kSteps / 2) {
      // The others wait for the newcomer, and go on slowly to let it in.
      while (!has_come) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return id == lost && step == 10 && at == point;
  };
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      const auto id = static_cast<GroupId>(worker) + 1;
      try {
        train(launcher.connect(worker, id), disturbance, record);
      } catch (const Lost&) {
        launcher.lose(id);
      }
      if (id == lost && returns) {
        newcomer = std::thread([&, worker] {
          auto link = launcher.connect(worker, 4);
          has_come = true;
          train(std::move(link), disturbance, record);
        });
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (newcomer.joinable()) {
    newcomer.join();
  }
  EXPECT_EQ(std::ssize(record.weights), returns ? 3 : 2);
  EXPECT_FALSE(record.weights.contains(lost));
  const auto expected = undisturbed();
  const auto& first = record.weights.begin()->second;
  for (const auto& [id, weights] : record.weights) {
    expect_close(weights, expected);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], first[i])) << id;
    }
  }
  expect_each_sample_once(record);
}

TEST(Manager, GroupsGoOnWhereverOneIsLost) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    for (const GroupId lost : {1, 2, 3}) {
      SCOPED_TRACE(
          "point " + std::to_string(static_cast<int>(point)) + ", group " +
          std::to_string(lost));
      lose_a_group(lost, point, false);
    }
  }
}

TEST(Manager, ALostGroupComesBackWithTheStateOfTheOthers) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    SCOPED_TRACE("point " + std::to_string(static_cast<int>(point)));
    lose_a_group(2, point, true);
  }
}

/// Runs `body` on two groups, each with its number and its manager.
void on_two_groups(const std::function<void(int worker, Manager&)>& body) {
  test::Launcher launcher(2);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      Manager manager(
          mesh::World::from_store({}, 0, 1),
          launcher.connect(worker, worker + 1));
      body(worker, manager);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST(Manager, GroupsWithOtherStatesAreRefused) {
  on_two_groups([](int worker, Manager& manager) {
    manager.register_state(
        worker == 0 ? "model" : "net", [] { return ""; }, [](auto) {});
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { manager.begin_step(); }),
        HasSubstr("has registered other states than this group"));
  });
}

TEST(Manager, AFailureThatNoLossExplainsIsThrown) {
  on_two_groups([](int worker, Manager& manager) {
    EXPECT_THAT(
        message_of_thrown<mesh::CommError>([&] {
          while (true) {
            auto step = manager.begin_step();
            manager.all_reduce(at::ones({2 + worker}), "weight");
            EXPECT_FALSE(step.commit());
          }
        }),
        HasSubstr("weight"));
  });
}

TEST(Manager, EachGroupNeedsASample) {
  std::barrier both(2);
  on_two_groups([&](int /*worker*/, Manager& manager) {
    const auto step = manager.begin_step();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { step.share(1); }),
        HasSubstr("samples of the step >= replica groups: 1 vs 2"));
    const auto [begin, end] = step.share(3);
    EXPECT_EQ(begin, step.group());
    EXPECT_EQ(end, step.group() == 0 ? 1 : 3);
    both.arrive_and_wait();
  });
}

TEST(Manager, RefusesAGroupOfSeveralRanksAndASecondCommit) {
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>(
          [] { Manager manager(mesh::World::fake(0, 2), nullptr); }),
      HasSubstr("a replica group of 2 ranks is not supported yet"));
  test::Launcher launcher(1);
  Manager manager(mesh::World::from_store({}, 0, 1), launcher.connect(0, 1));
  auto step = manager.begin_step();
  EXPECT_EQ(step.number(), 0);
  EXPECT_TRUE(step.commit());
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { step.commit(); }),
      HasSubstr("was committed twice"));
  EXPECT_EQ(manager.step(), 1);
}

} // namespace
} // namespace weft::elastic
