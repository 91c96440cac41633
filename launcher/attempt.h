#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/options/options.h"
#include "launcher/output/log_dir.h"
#include "launcher/output/output.h"
#include "launcher/process/master_socket.h"
#include "launcher/process/oom_monitor.h"
#include "launcher/process/orphan_reaper.h"
#include "launcher/process/signals.h"
#include "launcher/process/worker.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/supervisor.h"

namespace weft::launcher {

/// Everything of a launcher that its attempts use. Lifetime: the members must
/// outlive the attempts.
struct LauncherHost {
  const Options& options;
  const std::string& start_time;
  const std::string& program;
  const SignalQueue& signals;
  LogDir& logs;
  const OrphanReaper& guard;
  Output& output;
};

/// One start of workers of this host that end together.
class Attempt {
 public:
  /// Starts the workers that `context` names. Without a port in its assignment,
  /// the first worker serves the store at a port of `address`: `port`, or a
  /// free one if that is 0.
  /// `open_link` returns the connection to the lighthouse that a worker
  /// inherits; it may be empty.
  /// Throws: LaunchError if a worker cannot be started.
  Attempt(
      const LauncherHost& host,
      WorkerContext context,
      const std::string& address,
      int port,
      const std::function<base::UniqueFd(int local_rank)>& open_link = {});
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  Supervisor& supervisor() { return *supervisor_; }
  /// The port of the store if the first worker serves it.
  std::optional<int> store_port() const {
    return store_ ? std::optional(store_->port()) : std::nullopt;
  }
  /// Prints the report, and returns this host's part of the result. To be
  /// called once, when the supervisor is over.
  HostResult finish();

 private:
  void spawn_all(
      const std::function<base::UniqueFd(int local_rank)>& open_link);

  LauncherHost host_;
  WorkerContext context_;
  /// Keeps the port from other launchers. Empty if another host serves the
  /// store.
  std::optional<MasterSocket> store_;
  std::vector<Worker> workers_;
  std::optional<Supervisor> supervisor_;
  std::optional<OomMonitor> memory_;
};

/// Returns the name of this host.
std::string host_name();
/// Returns a descriptor that is readable when one of `sources` is; those below
/// 0 are left out.
base::UniqueFd make_wake_fd(std::initializer_list<int> sources);
/// Prints that a signal was passed on to workers that may handle it or not.
void log_passed_on(const LauncherHost& host, int signal);
/// Prints whether a signal that ends the run was forwarded, or came when the
/// workers were already ending.
void log_stop(const LauncherHost& host, int signal, bool is_forwarded);
/// Returns the result of a run that a signal ended while no worker ran.
RunResult stopped_without_worker(int signal);

} // namespace weft::launcher
