#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/connection/event_loop.h"
#include "launcher/options/options.h"
#include "launcher/rendezvous/admission.h"
#include "launcher/rendezvous/auth_listener.h"
#include "launcher/rendezvous/control_connection.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/rendezvous/restart_policy.h"
#include "launcher/rendezvous/run_result.h"

namespace weft::launcher {

/// Host 0's view of a run over several hosts: it lets the others in, ranks
/// them, starts all together, and decides what ended the run.
class Hub : public Hosts {
 public:
  /// Lets others in by a listening socket.
  Hub(const Options& options,
      const std::string& host_name,
      UniqueFd listener,
      const std::string& token,
      Say say);
  ~Hub() override;

  int fd() const override { return loop_.fd(); }
  void dispatch() override { loop_.dispatch(); }
  void ready() override;
  std::optional<Placement> take_placement() override;
  void serve_store(int port) override { gate_.serve_store(port); }
  void report_failure() override;
  void report_signal(int signal) override;
  std::optional<StopOrder> take_order() override;
  void end(const HostEnd& end) override;
  std::optional<Verdict> take_verdict() override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kGathering, kRunning, kResting, kOver };

  struct Member {
    HostReport report;
    /// Null for host 0.
    std::unique_ptr<Link> link;
    bool ready = false;
    bool ended = false;
  };
  using Members = std::vector<std::unique_ptr<Member>>;

  void tick();
  void say_who_is_missing();
  void admit(UniqueFd fd, const Bits256& session);
  void join(Link& link, const nlohmann::json& message);
  /// Nothing: it may join.
  std::optional<Objection> objection(const JoinRequest& request) const;
  void refuse(Link& link, const Objection& objection);
  int place_for(const JoinRequest& request) const;
  void hear(Member& member, const nlohmann::json& message);
  void lose(Member& member, const std::string& why);
  void start_if_all_are_ready();
  void fail(Member& member, std::chrono::milliseconds age);
  void stop_all(const StopOrder& order, const Member* except);
  void end(Member& member, const HostEnd& end);
  void conclude();
  void announce(const Verdict& verdict);
  void broadcast(const nlohmann::json& message, const Member* except = nullptr);
  Member& own() { return *members_.front(); }

  const Options& options_;
  const std::string command_;
  Say say_;
  EventLoop loop_;
  Gate gate_;
  Phase phase_ = Phase::kGathering;
  /// By node rank; null: not there yet.
  Members members_;
  /// Let in, but not yet joined.
  std::list<std::unique_ptr<Link>> lobby_;
  Restarts restarts_;
  uint64_t epoch_ = 0;
  Clock::time_point started_;
  Clock::time_point gathering_since_ = Clock::now();
  Clock::time_point next_note_;
  /// When the others are told to stop after the first failure.
  std::optional<Clock::time_point> stop_at_;
  std::optional<Placement> placement_;
  std::optional<StopOrder> order_;
  std::optional<Verdict> verdict_;
};

} // namespace weft::launcher
