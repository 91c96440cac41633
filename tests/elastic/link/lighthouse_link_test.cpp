#include "elastic/link/lighthouse_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "launcher/elastic/coordinator.h"
#include "lighthouse/clock.h"
#include "lighthouse/member.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"

namespace weft::elastic {
namespace {

using mesh::CommError;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using weft::test::message_of_thrown;

/// A coordinator on a thread of its own, as weftrun's.
class Launcher {
 public:
  explicit Launcher(int64_t groups, int64_t min_groups = 1)
      : coordinator_(options(groups, min_groups)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Launcher() {
    const uint64_t once = 1;
    EXPECT_EQ(
        write(stop_.get(), &once, sizeof(once)),
        static_cast<ssize_t>(sizeof(once)));
    thread_.join();
  }

  std::shared_ptr<LighthouseLink> connect(int worker, GroupId group) {
    const std::lock_guard lock(mutex_);
    return std::make_shared<LighthouseLink>(
        coordinator_.connect_worker(worker, group), group);
  }
  void lose(GroupId group) {
    const std::lock_guard lock(mutex_);
    coordinator_.lose(group);
  }
  std::vector<GroupId> epoch_members() {
    const std::lock_guard lock(mutex_);
    const auto& epoch = coordinator_.lighthouse().epoch();
    return epoch ? epoch->members : std::vector<GroupId>();
  }

 private:
  static LighthouseOptions options(int64_t groups, int64_t min_groups) {
    LighthouseOptions result;
    result.is_first_start = true;
    result.expected_groups = groups;
    result.min_groups = min_groups;
    return result;
  }
  void run() {
    while (true) {
      pollfd polled[] = {
          {stop_.get(), POLLIN, 0}, {coordinator_.fd(), POLLIN, 0}};
      poll(static_cast<pollfd*>(polled), 2, -1);
      if (polled[0].revents != 0) {
        return;
      }
      const std::lock_guard lock(mutex_);
      coordinator_.dispatch();
    }
  }

  std::mutex mutex_;
  launcher::Coordinator coordinator_;
  base::UniqueFd stop_;
  std::thread thread_;
};

TEST(LighthouseLink, ItsStoreIsAsC10ds) {
  Launcher launcher(1);
  const auto store = launcher.connect(0, 1)->store();
  store->setTimeout(seconds(10));
  const std::vector<uint8_t> bytes{0, 255, 7};
  store->set("key", bytes);
  EXPECT_EQ(store->get("key"), bytes);
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", -1), 2);
  EXPECT_TRUE(store->check({"key", "n"}));
  EXPECT_FALSE(store->check({"key", "other"}));
  EXPECT_EQ(store->getNumKeys(), 2);
  EXPECT_THAT(store->listKeys(), UnorderedElementsAre("key", "n"));
  EXPECT_EQ(store->compareSet("new", {}, bytes), bytes);
  EXPECT_TRUE(store->deleteKey("key"));
  EXPECT_FALSE(store->deleteKey("key"));
  const std::string large(3'000'000, 'x');
  store->set("large", large);
  EXPECT_EQ(store->get_to_str("large"), large);
}

TEST(LighthouseLink, AWaitEndsByItsKeyAndByItsTimeout) {
  Launcher launcher(1);
  const auto one = launcher.connect(0, 1)->store();
  const auto link = launcher.connect(1, 2);
  const auto other = link->store();
  EXPECT_THAT(
      message_of_thrown<CommError>(
          [&] { one->wait({"late"}, milliseconds(10)); }),
      HasSubstr("[lighthouse] wait timeout after 0.01 s for key late"));
  // Requests of one connection do not wait for each other.
  std::thread waiting([&] { other->wait({"late"}, seconds(30)); });
  other->set("early", std::string("1"));
  one->set("late", std::string("1"));
  waiting.join();
}

TEST(LighthouseLink, EndsWithItsLauncher) {
  auto launcher = std::make_unique<Launcher>(1);
  const auto link = launcher->connect(0, 1);
  std::thread waiting([&] {
    EXPECT_THAT(
        message_of_thrown<CommError>(
            [&] { link->store()->wait({"never"}, seconds(60)); }),
        HasSubstr("the connection to weftrun is closed"));
  });
  launcher.reset();
  waiting.join();
  EXPECT_THROW(link->store()->check({"key"}), CommError);
}

TEST(LighthouseLink, WithoutWeftrunThereIsNone) {
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>([] { LighthouseLink::from_env(); }),
      HasSubstr("Start it with weftrun --replica-size N"));
}

/// A replica group of one rank that follows the lighthouse and sums ones in
/// each epoch, until it is stopped or killed.
class Group {
 public:
  Group(Launcher& launcher, int worker, GroupId id)
      : link_(launcher.connect(worker, id)),
        parent_(mesh::World::from_store({}, 0, 1)),
        member_(id, seconds(30), now()) {
    link_->listen([this](const Reply& reply) { follow(reply); });
    heart_ = std::thread([this] { beat(); });
    thread_ = std::thread([this] { run(); });
  }
  ~Group() {
    stop();
    heart_.join();
    thread_.join();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    if (world_) {
      world_->abort();
    }
    changed_.notify_all();
  }
  /// Waits until the group has added with `groups` groups.
  void wait_for_sum(int64_t groups) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, seconds(20), [&] { return sum_ == groups; }))
        << sum_ << " vs " << groups;
  }

 private:
  void follow(const Reply& reply) {
    const std::lock_guard lock(mutex_);
    const auto before = member_.epoch().number;
    member_.receive(reply, now());
    if (world_ && (member_.phase() == Member::Phase::kOutside ||
                   member_.epoch().number != before)) {
      world_->abort();
    }
    changed_.notify_all();
  }
  void beat() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      tell();
      changed_.wait_for(lock, milliseconds(100));
    }
  }
  // With the mutex.
  void tell() {
    try {
      link_->send(member_.report(now()));
    } catch (const CommError&) {
      is_over_ = true;
    }
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      changed_.wait(lock, [&] {
        return is_over_ || member_.phase() == Member::Phase::kMeeting;
      });
      if (is_over_) {
        return;
      }
      const auto epoch = member_.epoch();
      const auto rank = std::ranges::find(epoch.members, link_->group()) -
                        epoch.members.begin();
      lock.unlock();
      try {
        train(epoch, rank);
      } catch (const CommError&) {
      }
      lock.lock();
      world_.reset();
      if (member_.epoch().number == epoch.number) {
        member_.leave();
      }
      tell();
    }
  }
  void train(const Epoch& epoch, int64_t rank) {
    const auto world = parent_.scoped(
        c10::make_intrusive<c10d::PrefixStore>(
            key_prefix(epoch.number), link_->store()),
        rank,
        std::ssize(epoch.members),
        seconds(30));
    {
      const std::lock_guard lock(mutex_);
      if (member_.epoch().number != epoch.number || is_over_ ||
          member_.phase() == Member::Phase::kOutside) {
        return;
      }
      world_ = world;
    }
    auto group = world.group();
    {
      const std::lock_guard lock(mutex_);
      bool applies = false;
      member_.enter(now(), applies);
      if (member_.phase() == Member::Phase::kWithoutState) {
        member_.take_state();
      }
      tell();
    }
    while (true) {
      auto one = torch::ones({1});
      group.all_reduce(one).wait();
      const std::lock_guard lock(mutex_);
      sum_ = one.item<int64_t>();
      changed_.notify_all();
    }
  }

  std::shared_ptr<LighthouseLink> link_;
  mesh::World parent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Member member_;
  std::optional<mesh::World> world_;
  bool is_over_ = false;
  int64_t sum_ = 0;
  std::thread heart_;
  std::thread thread_;
};

TEST(LighthouseLink, GroupsGoOnWithoutALostOne) {
  Launcher launcher(3);
  Group one(launcher, 0, 1);
  auto two = std::make_unique<Group>(launcher, 1, 2);
  Group three(launcher, 2, 3);
  for (auto* group : {&one, two.get(), &three}) {
    group->wait_for_sum(3);
  }
  two.reset();
  launcher.lose(2);
  one.wait_for_sum(2);
  three.wait_for_sum(2);
  EXPECT_THAT(launcher.epoch_members(), UnorderedElementsAre(1, 3));
}

} // namespace
} // namespace weft::elastic
