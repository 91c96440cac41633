#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/log.h"
#include "launcher/connection/event_loop.h"
#include "launcher/options/options.h"
#include "launcher/rendezvous/admission.h"
#include "launcher/rendezvous/auth_listener.h"
#include "launcher/rendezvous/control_connection.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/rendezvous/restart_policy.h"
#include "launcher/rendezvous/run_result.h"

namespace weft::launcher {

/// The rendezvous on host 0, for a run over several hosts. It admits and ranks
/// the other hosts, starts all of them together, and decides what ended the
/// run.
class RendezvousServer : public Rendezvous {
 public:
  /// Accepts the other hosts on `listener`.
  RendezvousServer(
      const Options& options,
      const std::string& host_name,
      base::UniqueFd listener,
      const std::string& token,
      base::Logger log);
  ~RendezvousServer() override;

  int fd() const override { return loop_.fd(); }
  void dispatch() override { loop_.dispatch(); }
  void ready() override;
  std::optional<RankAssignment> take_rank_assignment() override;
  void serve_store(int port) override { auth_listener_.serve_store(port); }
  void report_failure() override;
  void report_signal(int signal) override;
  std::optional<StopRequest> take_stop_request() override;
  void end(const HostResult& end) override;
  std::optional<RunResult> take_result() override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kWaitingForHosts, kRunning, kBackoff, kOver };

  struct Member {
    HostReport report;
    /// The connection. Null for host 0.
    std::unique_ptr<ControlConnection> link;
    bool ready = false;
    bool ended = false;
  };
  using Members = std::vector<std::unique_ptr<Member>>;

  void tick();
  void log_missing_hosts();
  void on_authenticated(base::UniqueFd fd, const Bits256& session);
  void join(ControlConnection& link, const nlohmann::json& message);
  /// Returns the reason why the host may not join. Empty if it may.
  std::optional<JoinRejection> rejection(const JoinRequest& request) const;
  void reject_join(ControlConnection& link, const JoinRejection& rejection);
  int node_rank_for(const JoinRequest& request) const;
  void on_message(Member& member, const nlohmann::json& message);
  void on_disconnect(Member& member, const std::string& why);
  void start_if_all_are_ready();
  void fail(Member& member, std::chrono::milliseconds age);
  void stop_all(const StopRequest& order, const Member* except);
  void end(Member& member, const HostResult& end);
  void finish_attempt();
  void send_result(const RunResult& run_result);
  void broadcast(const nlohmann::json& message, const Member* except = nullptr);
  Member& own() { return *members_.front(); }

  const Options& options_;
  const std::string command_;
  base::Logger log_;
  EventLoop loop_;
  AuthListener auth_listener_;
  Phase phase_ = Phase::kWaitingForHosts;
  /// The members by node rank. Null if the host has not joined yet.
  Members members_;
  /// Connections that are authenticated but have not joined yet.
  std::list<std::unique_ptr<ControlConnection>> pending_clients_;
  RestartPolicy restart_policy_;
  uint64_t round_ = 0;
  Clock::time_point started_;
  Clock::time_point gathering_since_ = Clock::now();
  Clock::time_point next_note_;
  /// The time at which the other hosts are stopped after the first failure.
  std::optional<Clock::time_point> stop_at_;
  std::optional<RankAssignment> rank_assignment_;
  std::optional<StopRequest> order_;
  std::optional<RunResult> run_result_;
};

} // namespace weft::launcher
