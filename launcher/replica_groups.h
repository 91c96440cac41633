#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/attempt.h"
#include "launcher/elastic/coordinator.h"
#include "launcher/process/local_ranks.h"
#include "launcher/process/signals.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/rendezvous/restart_policy.h"
#include "lighthouse/messages.h"

namespace weft::launcher {

/// The replica groups of a run on one host. The workers of a group start and
/// end together and have a store of their own, and a lighthouse
/// (lighthouse/lighthouse.h) that they may ask. A group that fails is
/// restarted while the others run, --max-restarts times; then, or if its exit
/// code is not retried, the others are stopped and the run ends with its error.
/// When groups that use the lighthouse have finished, no other one is
/// restarted, and the run succeeds if the others end with 0 or a code that
/// would be retried.
class ReplicaGroups {
 public:
  /// Lifetime: the members of `host` and `signals` must outlive this object.
  ReplicaGroups(const LauncherHost& host, SignalQueue& signals);

  /// Runs all groups to their end and returns the result of the run.
  RunResult run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Group {
    int number;
    LocalRanks workers;
    RestartPolicy restarts;
    lighthouse::GroupId life = 0;
    std::unique_ptr<Attempt> attempt = nullptr;
    Clock::time_point started = {};
    std::optional<Clock::time_point> restart_at = std::nullopt;
    std::optional<HostResult> result = std::nullopt;
    /// Whether this attempt was killed for the lighthouse.
    bool is_killed = false;
  };

  bool is_over() const;
  std::chrono::milliseconds time_left() const;
  void start(Group& group);
  void restart(Group& group);
  void handle_signal(int signal);
  void cancel_restarts(int signal);
  void advance(Group& group);
  bool have_finished() const;
  void decide(Group& group, RunResult next);
  bool is_left_out(const Group& group, int code) const;
  void end(Group& group);
  void log(const Group& group, const std::string& note);
  void give_up(const RunResult& run_result);
  RunResult result() const;

  LauncherHost host_;
  SignalQueue& signals_;
  std::vector<Group> groups_;
  /// The number of groups that were started.
  lighthouse::GroupId lives_ = 0;
  Coordinator coordinator_;
  base::UniqueFd wake_fd_;
  /// The result of the group that ends the run.
  std::optional<RunResult> failure_;
  /// The signal from outside that ends the run, or 0.
  int requested_signal_ = 0;
};

} // namespace weft::launcher
