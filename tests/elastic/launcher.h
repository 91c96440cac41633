#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "elastic/link/lighthouse_link.h"
#include "launcher/elastic/coordinator.h"
#include "lighthouse/clock.h"
#include "lighthouse/lighthouse.h"

namespace weft::elastic::test {

/// A coordinator on a thread of its own, as weftrun's.
class Launcher {
 public:
  explicit Launcher(int64_t groups, int64_t min_groups = 1)
      : groups_(groups),
        coordinator_(options(groups, min_groups)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Launcher() {
    const uint64_t once = 1;
    [[maybe_unused]] const auto written =
        write(stop_.get(), &once, sizeof(once));
    thread_.join();
  }

  std::shared_ptr<LighthouseLink> connect(
      int worker,
      lighthouse::GroupId group) {
    const std::lock_guard lock(mutex_);
    return std::make_shared<LighthouseLink>(
        coordinator_.connect_worker(worker, group),
        GroupLife{
            .id = group,
            .number = worker,
            .is_restarted = std::cmp_greater(group, groups_)});
  }
  void lose(lighthouse::GroupId group, const std::string& why = "") {
    const std::lock_guard lock(mutex_);
    coordinator_.lose(group, why);
  }
  /// The lighthouse answers nothing for `time`, and then is another one that
  /// knows nothing of the groups, as if it had been killed and started again.
  void restart_lighthouse(std::chrono::milliseconds time) {
    // A report that names a newer lighthouse makes this one begin again.
    constexpr lighthouse::GroupId kNobody = 1'000'000;
    const auto link = connect(1'000'000, kNobody);
    const std::lock_guard lock(mutex_);
    const auto before = coordinator_.lighthouse().ballot();
    std::this_thread::sleep_for(time);
    lighthouse::Report report;
    report.group = kNobody;
    report.ballot = before + 1;
    report.sent = lighthouse::now();
    report.has_left_for_good = true;
    link->send(report);
    while (coordinator_.lighthouse().ballot() == before) {
      coordinator_.dispatch();
    }
  }
  std::vector<lighthouse::GroupId> epoch_members() {
    const std::lock_guard lock(mutex_);
    const auto& epoch = coordinator_.lighthouse().epoch();
    return epoch ? epoch->members : std::vector<lighthouse::GroupId>();
  }

 private:
  static lighthouse::LighthouseOptions options(
      int64_t groups,
      int64_t min_groups) {
    lighthouse::LighthouseOptions result;
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

  const int64_t groups_;
  std::mutex mutex_;
  launcher::Coordinator coordinator_;
  base::UniqueFd stop_;
  std::thread thread_;
};

} // namespace weft::elastic::test
