#pragma once

#include "launcher/rendezvous/rendezvous.h"
#include "launcher/rendezvous/restart_policy.h"

namespace weft::launcher {

/// A run on this host alone: everybody else is always ready.
class OneHost : public Hosts {
 public:
  OneHost(int worker_count, int max_restarts)
      : worker_count_(worker_count), restarts_(max_restarts) {}

  int fd() const override { return -1; }
  void dispatch() override {}
  void ready() override;
  std::optional<Placement> take_placement() override;
  void serve_store(int) override {}
  void report_failure() override {}
  void report_signal(int) override {}
  std::optional<StopOrder> take_order() override { return std::nullopt; }
  void end(const HostEnd& end) override;
  std::optional<Verdict> take_verdict() override;

 private:
  int worker_count_;
  Restarts restarts_;
  std::chrono::steady_clock::time_point started_;
  std::optional<Placement> placement_;
  std::optional<Verdict> verdict_;
};

} // namespace weft::launcher
