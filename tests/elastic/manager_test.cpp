#include "elastic/manager.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dtensor/tensor/dtensor.h"
#include "elastic/distributed_data_parallel.h"
#include "elastic/pure_distributed_data_parallel.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"
#include "tests/elastic/launcher.h"
#include "tests/support/expect_error.h"
#include "tp/parallelize_module.h"

namespace weft::elastic {
namespace {

using Options = ddp::DistributedDataParallelOptions;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 60;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = second(torch::tanh(first(x)));
    return dtensor::is_dtensor(y) ? dtensor::to_local(y) : y;
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

at::Tensor samples_of(int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(step + 100));
  return at::randn({kBatch, 4}, generator);
}

/// The loss of some samples of a step, as their part of that of the batch.
at::Tensor loss_of(
    const std::function<at::Tensor(const at::Tensor&)>& forward,
    int64_t step,
    int64_t begin,
    int64_t end) {
  const auto x = samples_of(step).slice(0, begin, end);
  const auto y = forward(x);
  return (y - x.sum(1, true)).pow(2).sum() / kBatch;
}

std::vector<at::Tensor> copies_of(const Net& net) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) {
    result.push_back(
        dtensor::is_dtensor(parameter)
            ? dtensor::full_tensor(parameter).detach()
            : parameter.detach().clone());
  }
  return result;
}

/// The weights that one process has after all steps.
std::vector<at::Tensor> undisturbed() {
  auto net = make_net();
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of([&](const auto& x) { return net->forward(x); }, step, 0, kBatch)
        .backward();
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
  std::function<bool(lighthouse::GroupId, int64_t step, Point)> ends =
      [](lighthouse::GroupId, int64_t, Point) { return false; };
};

/// What the groups did, over all.
struct Record {
  std::mutex mutex;
  /// The weights of each group at its end.
  std::map<lighthouse::GroupId, std::vector<at::Tensor>> weights;
  /// The samples that were applied, by step.
  std::map<int64_t, std::set<std::pair<int64_t, int64_t>>> applied;
  /// The samples whose gradients a group had given away when it ended.
  std::map<int64_t, std::pair<int64_t, int64_t>> given_away;
  std::map<lighthouse::GroupId, int64_t> epochs;
  /// How often a rank computed nothing while it got the state.
  std::atomic<int> without_inputs = 0;
  /// What the first rank of each group was told of the groups.
  std::map<lighthouse::GroupId, std::vector<Quorum>> quorums;
};

/// Runs `body` on threads that are numbered from 0.
void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

/// How the groups of a test are made.
struct Groups {
  /// Several ranks divide the model.
  int ranks = 1;
  /// Whether gradients are added in buckets, or one by one.
  bool has_buckets = false;
  /// Whether newcomers plan their buckets before they join, and compute nothing
  /// while they get the state.
  bool are_warm = false;
  /// The lanes into which a step is divided, or 0.
  int64_t lanes = 0;
  /// Whether the ranks of a group vote in a message of the test's own.
  bool vote_themselves = false;
};

/// Ends a step; true if it is applied.
bool commit(Step& step, const Groups& groups, const mesh::World& world) {
  if (!groups.vote_themselves) {
    return step.commit();
  }
  const auto unprepared = at::full({1}, step.is_prepared() ? 0 : 1, at::kLong);
  world.group().all_reduce(unprepared, mesh::ReduceOp::kSum, "votes").wait();
  return step.commit(unprepared.item<int64_t>() == 0);
}

/// The parts [begin, end) of the samples that a group computes one after
/// another, each in a lane if there are lanes.
struct Part {
  std::optional<int64_t> lane;
  int64_t begin;
  int64_t end;
};
std::vector<Part> parts_of(const Step& step, const Groups& groups) {
  if (groups.lanes == 0) {
    const auto [begin, end] = step.share(kBatch);
    return {{.lane = {}, .begin = begin, .end = end}};
  }
  std::vector<Part> result;
  const auto [first, last] = step.lanes();
  for (int64_t lane = first; lane < last; ++lane) {
    result.push_back(
        {.lane = lane,
         .begin = kBatch * lane / groups.lanes,
         .end = kBatch * (lane + 1) / groups.lanes});
  }
  return result;
}

/// A rank of a group that trains to the end, or until the disturbance ends it.
void train(
    std::shared_ptr<LighthouseLink> link,
    const mesh::World& world,
    const Groups& groups,
    const Disturbance& disturbance,
    Record& record) {
  at::set_num_threads(1);
  const auto id = link->group().id;
  const auto mesh =
      mesh::DeviceMesh::create(world, {1, world.world_size()}, {"dp", "tp"});
  auto net = make_net();
  if (world.world_size() > 1) {
    tp::parallelize_module(
        *net,
        mesh["tp"],
        {{"first", tp::ColwiseParallel()}, {"second", tp::RowwiseParallel()}});
  }
  if (id > 3) { // A newcomer has nothing of its own, and adds nothing.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.fill_(std::nan(""));
    }
  }
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  Manager manager(
      world, std::move(link), ManagerOptions{.lanes = groups.lanes});
  manager.register_module("net", net);
  manager.register_optimizer("optimizer", optimizer, net);
  std::optional<PureDistributedDataParallel> one_by_one;
  std::optional<DistributedDataParallel<Net>> ddp;
  if (groups.has_buckets) { // Of about two parameters.
    ddp.emplace(manager, net, mesh["dp"], Options{.bucket_cap_mb = 6e-5});
  } else {
    one_by_one.emplace(manager, net);
  }
  const bool is_warm = groups.are_warm && id > 3;
  if (is_warm) { // Plans the buckets, to no other effect.
    loss_of(std::ref(*ddp), 0, 0, kBatch).backward();
  }
  while (manager.step() < kSteps) {
    auto step = manager.begin_step();
    const auto parts = parts_of(step, groups);
    const auto begin = parts.front().begin;
    const auto end = parts.back().end;
    EXPECT_LT(begin, end);
    EXPECT_LE(end, kBatch);
    if (disturbance.ends(id, step.number(), Point::kBeforeBackward)) {
      throw Lost();
    }
    // Also while the last lane is computed, the groups add something once.
    const auto samples = at::full({1}, end - begin, at::kLong);
    std::function<void()> wait_for_samples;
    for (const auto& part : parts) {
      std::optional<LaneScope> lane;
      if (part.lane) {
        lane.emplace(step.enter_lane(*part.lane));
      }
      optimizer.zero_grad();
      if (&part == &parts.back()) {
        wait_for_samples = step.start_sum_over_groups(samples, "samples");
      }
      if (is_warm && !step.counts()) {
        ++record.without_inputs;
        ddp->reduce_without_inputs([&] { step.wait_for_transfer(); });
        continue;
      }
      loss_of(
          [&](const at::Tensor& x) {
            return ddp ? (*ddp)(x) : net->forward(x);
          },
          step.number(),
          part.begin,
          part.end)
          .backward();
    }
    wait_for_samples();
    const auto give_away = [&] {
      const std::lock_guard lock(record.mutex);
      if (step.counts()) {
        record.given_away[step.number()] = {begin, end};
      }
    };
    if (disturbance.ends(id, step.number(), Point::kBeforeCommit)) {
      give_away();
      throw Lost();
    }
    if (commit(step, groups, world)) {
      if (disturbance.ends(id, step.number(), Point::kAfterCommit)) {
        give_away();
        throw Lost();
      }
      EXPECT_EQ(samples.item<int64_t>(), kBatch);
      optimizer.step();
      const std::lock_guard lock(record.mutex);
      if (const auto quorum = manager.take_quorum()) {
        record.quorums[id].push_back(*quorum);
      }
      if (step.counts()) {
        record.applied[step.number()].emplace(begin, end);
      }
    }
  }
  auto weights = copies_of(*net);
  const std::lock_guard lock(record.mutex);
  record.weights[id] = std::move(weights);
  record.epochs[id] = manager.epochs();
}

/// The ranks of a group, each on a thread. Returns whether the group was lost.
bool run_group(
    test::Launcher& launcher,
    int worker,
    lighthouse::GroupId id,
    const Groups& groups,
    const Disturbance& disturbance,
    Record& record) {
  const int ranks = groups.ranks;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> is_lost = false;
  on_threads(ranks, [&](int rank) {
    try {
      train(
          launcher.connect(worker * ranks + rank, id),
          mesh::World::from_store(store, rank, ranks),
          groups,
          disturbance,
          record);
    } catch (const Lost&) {
      is_lost = true;
    }
  });
  if (is_lost) {
    launcher.lose(id, "exit code 9");
  }
  return is_lost;
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

/// Three groups that are not disturbed.
void train_three(const Groups& groups, Record& record) {
  test::Launcher launcher(3);
  on_threads(3, [&](int worker) {
    run_group(launcher, worker, worker + 1, groups, {}, record);
  });
}

void train_undisturbed(const Groups& groups) {
  Record record;
  train_three(groups, record);
  const auto expected = undisturbed();
  for (const auto& [id, weights] : record.weights) {
    expect_close(weights, expected);
  }
  EXPECT_EQ(std::ssize(record.weights), 3);
  expect_each_sample_once(record);
}

/// The weights that one undisturbed group has after all steps, with the rest of
/// `groups`.
std::vector<at::Tensor> of_one_group(const Groups& groups) {
  test::Launcher launcher(1);
  Record record;
  run_group(launcher, 0, 1, groups, {}, record);
  return record.weights.at(1);
}

void expect_equal_bits(
    const std::vector<at::Tensor>& one,
    const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i], other[i])) << i;
  }
}

TEST(Manager, GroupsTrainAsOneProcessWould) {
  train_undisturbed({});
}

TEST(Manager, GroupsOfTwoRanksTrainAsOneProcessWould) {
  train_undisturbed({.ranks = 2});
}

TEST(ElasticDdp, GroupsTrainAsOneProcessWould) {
  train_undisturbed({.has_buckets = true});
  train_undisturbed({.ranks = 2, .has_buckets = true});
}

/// All groups end with equal bits, and the weights of one undisturbed process;
/// with lanes these have the same bits.
void expect_equal_ends(const Record& record, const Groups& groups) {
  const auto expected = undisturbed();
  const auto bits =
      groups.lanes > 0 ? of_one_group(groups) : record.weights.begin()->second;
  for (const auto& [id, weights] : record.weights) {
    SCOPED_TRACE(id);
    expect_close(weights, expected);
    expect_equal_bits(weights, bits);
  }
  expect_each_sample_once(record);
}

/// What a group says of another one that is lost in step 10 and may return.
void expect_quorums(
    const std::vector<Quorum>& quorums,
    int64_t lost,
    Point point,
    bool returns) {
  // It may be back before the others have done a step without it.
  const bool is_at_once = returns && quorums.size() == 2;
  ASSERT_EQ(std::ssize(quorums), returns && !is_at_once ? 3 : 2);
  EXPECT_EQ(quorums[0].step, 0);
  EXPECT_EQ(std::ssize(quorums[0].joined), 3);
  EXPECT_EQ(std::ssize(quorums[1].groups), is_at_once ? 3 : 2);
  ASSERT_EQ(std::ssize(quorums[1].lost), 1);
  EXPECT_EQ(quorums[1].lost[0].group, lost);
  EXPECT_EQ(quorums[1].lost[0].why, "exit code 9");
  EXPECT_GT(quorums[1].reconfigure_ms, 0);
  if (point == Point::kBeforeBackward) {
    EXPECT_EQ(quorums[1].step, 10);
    EXPECT_EQ(quorums[1].steps_redone, 1);
  } else { // Of step 10 or 11 it depends on who was prepared.
    EXPECT_THAT(quorums[1].step, AnyOf(10, 11));
    EXPECT_LE(quorums[1].steps_redone, 1);
  }
  if (returns) {
    EXPECT_THAT(quorums.back().joined, ElementsAre(lost));
  }
}

/// Gives a newcomer, which may be slow, some seconds before the others end. It
/// can join between steps alone, so they do not wait for it in a step.
class Newcomers {
 public:
  /// Called by each group at each point of a step. The second half of the steps
  /// takes longer and longer until a group with at least the number `awaited`
  /// has begun one.
  void let_in(
      lighthouse::GroupId awaited,
      lighthouse::GroupId id,
      int64_t step,
      Point at) {
    if (id >= awaited) {
      is_there_ = true;
    }
    if (!is_there_ && at == Point::kBeforeCommit && step >= kSteps / 2) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(10 * (step - kSteps / 2 + 1)));
    }
  }

 private:
  std::atomic<bool> is_there_ = false;
};

/// Three groups, of which one is lost at a point of step 10. If it `returns`, a
/// new life of it begins at once.
void lose_a_group(
    lighthouse::GroupId lost,
    Point point,
    bool returns,
    const Groups& groups = {}) {
  test::Launcher launcher(3);
  Record record;
  Newcomers newcomers;
  std::atomic<int> begun = 0;
  Disturbance disturbance;
  disturbance.ends = [&](lighthouse::GroupId id, int64_t step, Point at) {
    if (step == 10 && at == Point::kBeforeBackward) {
      // One that heard of the loss before the step would do none again.
      begun += id == lost ? 0 : 1;
      while (id == lost && begun < 2 * groups.ranks) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    if (returns) {
      newcomers.let_in(4, id, step, at);
    }
    return id == lost && step == 10 && at == point;
  };
  on_threads(3, [&](int worker) {
    const auto id = static_cast<lighthouse::GroupId>(worker) + 1;
    if (run_group(launcher, worker, id, groups, disturbance, record) &&
        returns) {
      run_group(launcher, worker, 4, groups, disturbance, record);
    }
  });
  EXPECT_EQ(std::ssize(record.weights), returns ? 3 : 2);
  EXPECT_FALSE(record.weights.contains(lost));
  expect_equal_ends(record, groups);
  EXPECT_EQ(record.without_inputs > 0, groups.are_warm);
  const auto survivor = lighthouse::GroupId{lost == 1 ? 2U : 1U};
  const auto number = static_cast<int64_t>(lost - 1) * groups.ranks;
  expect_quorums(record.quorums[survivor], number, point, returns);
}

TEST(Manager, GroupsGoOnWhereverOneIsLost) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    for (const lighthouse::GroupId lost : {1, 2, 3}) {
      SCOPED_TRACE(
          "point " + std::to_string(static_cast<int>(point)) + ", group " +
          std::to_string(lost));
      lose_a_group(lost, point, false);
    }
  }
}

TEST(Manager, GroupsOfTwoRanksGoOnWhereverOneIsLost) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    for (const lighthouse::GroupId lost : {1, 3}) {
      SCOPED_TRACE(
          "point " + std::to_string(static_cast<int>(point)) + ", group " +
          std::to_string(lost));
      lose_a_group(lost, point, false, {.ranks = 2});
    }
  }
}

TEST(Manager, GroupsThatVoteThemselvesGoOnWhereverOneIsLost) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    SCOPED_TRACE("point " + std::to_string(static_cast<int>(point)));
    lose_a_group(2, point, true, {.ranks = 2, .vote_themselves = true});
  }
}

TEST(Manager, ALostGroupOfTwoRanksComesBackWithTheStateOfTheOthers) {
  lose_a_group(2, Point::kBeforeCommit, true, {.ranks = 2});
}

/// Three groups, of which the second comes back as group 4. In the step in
/// which it gets the state, it or the first one, which sends it, is lost.
void lose_a_group_in_a_transfer(
    lighthouse::GroupId lost,
    Point point,
    const Groups& groups) {
  test::Launcher launcher(3);
  Record record;
  constexpr lighthouse::GroupId kNewcomer = 4;
  Newcomers newcomers;
  std::atomic<int64_t> transfer_step = -1;
  std::atomic<lighthouse::GroupId> last_life = 3;
  std::atomic<bool> is_lost = false;
  Disturbance disturbance;
  disturbance.ends = [&](lighthouse::GroupId id, int64_t step, Point at) {
    if (id == kNewcomer) {
      int64_t none = -1;
      transfer_step.compare_exchange_strong(none, step);
    }
    newcomers.let_in(lost == kNewcomer ? 5 : kNewcomer, id, step, at);
    const bool is_now = id == lost && step == transfer_step && at == point;
    if (is_now) {
      is_lost = true;
    }
    return is_now || (id == 2 && step == 10 && at == Point::kBeforeCommit);
  };
  on_threads(3, [&](int worker) {
    auto id = static_cast<lighthouse::GroupId>(worker) + 1;
    while (run_group(launcher, worker, id, groups, disturbance, record) &&
           id != 1) {
      id = ++last_life;
    }
  });
  EXPECT_TRUE(is_lost);
  EXPECT_EQ(last_life, lost == kNewcomer ? 5 : kNewcomer);
  EXPECT_EQ(std::ssize(record.weights), lost == kNewcomer ? 3 : 2);
  EXPECT_TRUE(record.weights.contains(last_life));
  expect_equal_ends(record, groups);
  EXPECT_EQ(record.without_inputs > 0, groups.are_warm);
}

TEST(Manager, AGroupThatSendsOrGetsTheStateCanBeLost) {
  for (const lighthouse::GroupId lost : {1, 4}) {
    for (const auto point :
         {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
      if (lost == 1 && point == Point::kBeforeBackward) {
        continue; // It does not know by then that another one is there.
      }
      for (const int ranks : {1, 2}) {
        SCOPED_TRACE(
            "point " + std::to_string(static_cast<int>(point)) + ", group " +
            std::to_string(lost) + ", ranks " + std::to_string(ranks));
        lose_a_group_in_a_transfer(
            lost, point, {.ranks = ranks, .has_buckets = ranks == 2});
      }
    }
  }
}

// Two or three groups have the lanes in turn.
TEST(ElasticLanes, TheBitsDoNotDependOnTheGroupsThatAreLost) {
  for (const int64_t lanes : {3, 8}) {
    for (const bool has_buckets : {false, true}) {
      for (const int ranks : {1, 2}) {
        SCOPED_TRACE(
            std::to_string(lanes) + " lanes, buckets " +
            std::to_string(int{has_buckets}) + ", ranks " +
            std::to_string(ranks));
        const Groups groups{
            .ranks = ranks, .has_buckets = has_buckets, .lanes = lanes};
        lose_a_group(2, Point::kBeforeCommit, true, groups);
        lose_a_group(1, Point::kBeforeBackward, false, groups);
      }
    }
  }
}

TEST(ElasticLanes, ANewcomerNeedNotComputeWhileItGetsTheState) {
  for (const lighthouse::GroupId lost : {1, 4}) {
    lose_a_group_in_a_transfer(
        lost,
        Point::kBeforeCommit,
        {.has_buckets = true, .are_warm = true, .lanes = 4});
  }
}

// Without lanes the order of additions shows.
TEST(ElasticLanes, ThreeGroupsHaveTheBitsOfOne) {
  for (const int64_t lanes : {0, 5}) {
    Record record;
    const Groups groups{.lanes = lanes};
    train_three(groups, record);
    const auto alone = of_one_group(groups);
    bool is_equal = true;
    for (size_t i = 0; i < alone.size(); ++i) {
      is_equal = is_equal && at::equal(alone[i], record.weights.at(2)[i]);
    }
    EXPECT_EQ(is_equal, lanes > 0);
  }
}

/// Runs `body` on two groups, each with its number and its manager.
void on_two_groups(
    const std::function<void(int worker, Manager&)>& body,
    const ManagerOptions& options = {}) {
  test::Launcher launcher(2);
  on_threads(2, [&](int worker) {
    Manager manager(
        mesh::World::from_store({}, 0, 1),
        launcher.connect(worker, worker + 1),
        options);
    body(worker, manager);
  });
}

TEST(ElasticDdp, GroupsGoOnWhereverOneIsLost) {
  for (const int ranks : {1, 2}) {
    for (const auto point :
         {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
      SCOPED_TRACE(
          std::to_string(ranks) + " ranks, point " +
          std::to_string(static_cast<int>(point)));
      lose_a_group(2, point, false, {.ranks = ranks, .has_buckets = true});
    }
  }
}

// It makes its buckets when the others have theirs.
TEST(ElasticDdp, ALostGroupComesBackWithTheStateOfTheOthers) {
  for (const int ranks : {1, 2}) {
    lose_a_group(
        2, Point::kBeforeCommit, true, {.ranks = ranks, .has_buckets = true});
  }
}

TEST(ElasticDdp, ANewcomerNeedNotComputeWhileItGetsTheState) {
  for (const int ranks : {1, 2}) {
    const Groups groups{.ranks = ranks, .has_buckets = true, .are_warm = true};
    lose_a_group(2, Point::kBeforeCommit, true, groups);
    for (const lighthouse::GroupId lost : {1, 4}) {
      lose_a_group_in_a_transfer(lost, Point::kBeforeCommit, groups);
    }
  }
}

TEST(ElasticDdp, RefusesReplicasThatMayDiffer) {
  on_two_groups([](int /*worker*/, Manager& manager) {
    const auto net = make_net();
    const auto mesh = mesh::DeviceMesh::create(
        mesh::World::from_store({}, 0, 1), {1}, {"dp"});
    const auto refusal = [&](const Options& options) {
      return message_of_thrown<c10::ValueError>(
          [&] { DistributedDataParallel<Net>(manager, net, mesh, options); });
    };
    EXPECT_THAT(
        refusal({.find_unused_parameters = true}),
        HasSubstr("find_unused_parameters cannot be combined with replica "
                  "groups that come and go"));
    EXPECT_THAT(
        refusal({.auto_bucketing = true}), HasSubstr("Set bucket_cap_mb"));
    torch::nn::Sequential sparse(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          DistributedDataParallel<torch::nn::SequentialImpl>(
              manager, sparse.ptr(), mesh);
        }),
        HasSubstr("\"0\" has sparse gradients"));
  });
  const auto mesh =
      mesh::DeviceMesh::create(mesh::World::fake(0, 2), {2}, {"dp"});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { detail::checked_options(mesh, {}); }),
      HasSubstr("mesh of replicas: got 2 ranks, expected 1"));
}

TEST(Manager, ALostGroupComesBackWithTheStateOfTheOthers) {
  for (const auto point :
       {Point::kBeforeBackward, Point::kBeforeCommit, Point::kAfterCommit}) {
    SCOPED_TRACE("point " + std::to_string(static_cast<int>(point)));
    lose_a_group(2, point, true);
  }
}

/// Two groups of which the second is refused and the first goes on alone.
void expect_refusal(
    const std::function<void(int worker, Manager&)>& register_state,
    const std::string& message) {
  test::Launcher launcher(2);
  const auto train_a_step = [&](int worker) {
    Manager manager(
        mesh::World::from_store({}, 0, 1),
        launcher.connect(worker, static_cast<lighthouse::GroupId>(worker) + 1));
    register_state(worker, manager);
    auto step = manager.begin_step();
    EXPECT_EQ(step.groups(), 1);
    EXPECT_TRUE(step.commit());
  };
  std::thread first([&] { train_a_step(0); });
  EXPECT_THAT(
      message_of_thrown<mesh::DisagreementError>([&] { train_a_step(1); }),
      HasSubstr(message));
  launcher.lose(2);
  first.join();
}

TEST(Manager, AGroupWithAnotherStateIsRefused) {
  expect_refusal(
      [](int worker, Manager& manager) {
        manager.register_state("model", [worker] {
          return dtensor::StateDict{
              {"bias", at::ones({3})}, {"weight", at::ones({2 + worker, 3})}};
        });
      },
      "it has \"model.weight [3, 3] Float\", and they have \"model.weight [2, "
      "3] Float\"");
}

TEST(Manager, AGroupWithAnotherOptionIsRefused) {
  expect_refusal(
      [](int worker, Manager& manager) {
        manager.register_text("optimizer.lr", worker == 0 ? "0.1" : "0.2");
      },
      "it has \"optimizer.lr 0.2\", and they have \"optimizer.lr 0.1\"");
}

// Groups would have statistics of different samples.
TEST(Manager, RefusesRunningStatistics) {
  test::Launcher launcher(1);
  Manager manager(mesh::World::from_store({}, 0, 1), launcher.connect(0, 1));
  const auto stats = [](bool tracks) {
    return torch::nn::BatchNorm1d(
        torch::nn::BatchNorm1dOptions(2).track_running_stats(tracks));
  };
  torch::nn::Sequential net(torch::nn::Linear(2, 2), stats(true));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { manager.register_module("net", net.ptr()); }),
      HasSubstr(
          "\"1\" has running statistics of the samples of its own group"));
  net->eval();
  manager.register_module("net", net.ptr());
  manager.register_module("norm", stats(false).ptr());
}

/// Two groups that want to be two; the second one is lost after three steps.
/// `meanwhile` is called then.
void lose_one_of_two(
    const ManagerOptions& options,
    const std::function<void(test::Launcher&)>& meanwhile,
    const std::function<void(Manager&)>& train_the_first) {
  test::Launcher launcher(2);
  std::thread second([&] {
    try {
      Manager manager(
          mesh::World::from_store({}, 0, 1), launcher.connect(1, 2), options);
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(manager.begin_step().commit());
      }
      throw Lost();
    } catch (const Lost&) {
      launcher.lose(2);
    }
    meanwhile(launcher);
  });
  {
    Manager manager(
        mesh::World::from_store({}, 0, 1), launcher.connect(0, 1), options);
    train_the_first(manager);
  }
  second.join();
}

// It asks again if the others have ended the epoch before it could leave.
TEST(Manager, AGroupLeavesWithoutALostStep) {
  test::Launcher launcher(3);
  std::atomic<int> redone = 0;
  on_threads(3, [&](int worker) {
    Manager manager(
        mesh::World::from_store({}, 0, 1),
        launcher.connect(worker, worker + 1));
    EXPECT_FALSE(manager.is_run_ending());
    int64_t end = kSteps;
    while (manager.step() < end) {
      auto step = manager.begin_step();
      const auto sum = at::ones({1});
      manager.all_reduce(sum, "sum");
      if (worker == 0 && step.number() >= 2) {
        manager.leave_after_step();
      }
      redone += step.commit() ? 0 : 1;
      EXPECT_EQ(sum.item<float>(), step.groups());
      const auto quorum = manager.take_quorum();
      if (quorum && quorum->groups.size() == 2) {
        EXPECT_GE(step.number(), 3);
        end = step.number() + 4;
        ASSERT_EQ(std::ssize(quorum->lost), 1);
        EXPECT_EQ(quorum->lost[0].why, "left");
      }
      EXPECT_EQ(step.groups(), end == kSteps ? 3 : 2);
      if (manager.has_left()) {
        return;
      }
    }
    EXPECT_LT(end, kSteps) << "the first one has not left";
  });
  EXPECT_EQ(redone, 0);
}

// For longer than the time after which it would end a group. The next one takes
// the groups over as they are, and notices when one is lost.
TEST(Manager, NoStepWaitsForALighthouseThatIsLost) {
  constexpr auto kGone = std::chrono::milliseconds(5500);
  test::Launcher launcher(3);
  std::atomic<int64_t> steps = 0;
  std::atomic<bool> is_back = false;
  std::thread lighthouse([&] {
    while (steps < 5) {
      std::this_thread::yield();
    }
    const int64_t before = steps;
    launcher.restart_lighthouse(kGone);
    EXPECT_GT(steps - before, 20);
    is_back = true;
  });
  const auto train = [&](int worker) {
    Manager manager(
        mesh::World::from_store({}, 0, 1),
        launcher.connect(worker, worker + 1));
    int64_t after = 0;
    while (after < 10) {
      auto step = manager.begin_step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto know = at::full({1}, is_back ? 1 : 0, at::kLong);
      manager.all_reduce(know, "know");
      if (!step.commit()) {
        EXPECT_TRUE(is_back);
        continue;
      }
      steps += worker == 0 ? 1 : 0;
      if (know.item<int64_t>() == step.groups()) {
        ++after;
        if (worker == 2) {
          throw Lost();
        }
      }
      // In the last step the other one may have gone already.
      if (after < 10) {
        EXPECT_EQ(manager.epochs(), step.groups() == 3 ? 1 : 2);
      }
    }
  };
  on_threads(3, [&](int worker) {
    try {
      train(worker);
    } catch (const Lost&) {
      launcher.lose(worker + 1);
    }
  });
  lighthouse.join();
}

TEST(Manager, TooFewGroupsSaveAndEnd) {
  for (const bool is_stopped : {false, true}) {
    std::atomic<bool> stops = false;
    int64_t saves = 0;
    ManagerOptions options;
    options.min_groups = 2;
    options.join_timeout =
        is_stopped ? std::chrono::seconds(600) : std::chrono::seconds(1);
    options.is_asked_to_stop = [&] { return stops.load(); };
    options.save = [&] { ++saves; };
    int64_t steps = 0;
    lose_one_of_two(
        options,
        [&](test::Launcher& /*launcher*/) { stops = is_stopped; },
        [&](Manager& manager) {
          EXPECT_THAT(
              message_of_thrown<TooFewGroupsError>([&] {
                while (true) {
                  auto step = manager.begin_step();
                  EXPECT_EQ(step.groups(), 2);
                  steps += step.commit() ? 1 : 0;
                }
              }),
              HasSubstr(
                  "replica groups: got 1, expected at least min_groups = 2"));
          EXPECT_EQ(manager.step(), steps);
        });
    EXPECT_EQ(saves, 1);
    EXPECT_GE(steps, 3);
  }
}

TEST(Manager, TooFewGroupsGoOnWhenOthersCome) {
  ManagerOptions options;
  options.min_groups = 2;
  options.join_timeout = std::chrono::seconds(600);
  options.save = [] { FAIL(); };
  const auto finish = [](Manager& manager) {
    while (manager.step() < 6) {
      manager.begin_step().commit();
    }
  };
  lose_one_of_two(
      options,
      [&](test::Launcher& launcher) {
        Manager manager(
            mesh::World::from_store({}, 0, 1), launcher.connect(1, 3), options);
        finish(manager);
      },
      finish);
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
        HasSubstr("samples of the step: got 1, expected at least one per "
                  "replica group, of which there are 2"));
    const auto [begin, end] = step.share(3);
    EXPECT_EQ(begin, step.group());
    EXPECT_EQ(end, step.group() == 0 ? 1 : 3);
    both.arrive_and_wait();
  });
}

TEST(ElasticLanes, AStepEndsWithAllOfThem) {
  std::barrier both(2);
  on_two_groups(
      [&](int worker, Manager& manager) {
        auto step = manager.begin_step();
        const auto [begin, end] = step.lanes();
        EXPECT_EQ(begin, 2 * worker);
        EXPECT_EQ(end, 2 * worker + 2);
        const auto sum = at::empty({3});
        for (int64_t lane = begin; lane < end; ++lane) {
          const auto in_lane = step.enter_lane(lane);
          sum.fill_(static_cast<double>(lane));
          manager.all_reduce(sum, "sum");
          if (lane == begin) {
            EXPECT_EQ(sum[0].item<double>(), lane);
            EXPECT_THAT(
                message_of_thrown<c10::ValueError>([&] { step.commit(); }),
                HasSubstr("was not entered"));
          }
        }
        EXPECT_EQ(sum[0].item<double>(), 0 + 1 + 2 + 3);
        const auto groups = at::ones({1}); // Outside of a lane.
        manager.all_reduce(groups, "groups");
        EXPECT_EQ(groups.item<double>(), 2);
        EXPECT_TRUE(step.commit());
        both.arrive_and_wait();
      },
      {.lanes = 4});
}

TEST(ElasticLanes, AreAnOptionOfAllGroups) {
  test::Launcher launcher(1);
  Manager manager(mesh::World::from_store({}, 0, 1), launcher.connect(0, 1));
  const auto step = manager.begin_step();
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { step.lanes(); }),
      HasSubstr("Set ManagerOptions::lanes, or use Step::share()"));
}

TEST(Manager, RefusesASecondCommit) {
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
