#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "launcher/options/options.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/rendezvous/restart_policy.h"

namespace weft::launcher {

/// Creates this launcher's rendezvous for the run that `options` describes:
/// single-host, the server (host 0) or a client (any other host).
/// Throws: LaunchError if it cannot take its role.
std::unique_ptr<Rendezvous> make_rendezvous(
    const Options& options,
    const std::string& host_name,
    base::Logger log);

/// The rendezvous of a run on this host alone. It never waits for other hosts.
class SingleHostRendezvous : public Rendezvous {
 public:
  SingleHostRendezvous(int worker_count, int max_restarts)
      : worker_count_(worker_count), restart_policy_(max_restarts) {}

  int fd() const override { return -1; }
  void dispatch() override {}
  void ready() override;
  std::optional<RankAssignment> take_rank_assignment() override;
  void serve_store(int) override {}
  void report_failure() override {}
  void report_signal(int) override {}
  std::optional<StopRequest> take_stop_request() override {
    return std::nullopt;
  }
  void end(const HostResult& end) override;
  std::optional<RunResult> take_result() override;

 private:
  int worker_count_;
  RestartPolicy restart_policy_;
  std::chrono::steady_clock::time_point started_;
  std::optional<RankAssignment> rank_assignment_;
  std::optional<RunResult> run_result_;
};

} // namespace weft::launcher
