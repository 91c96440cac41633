#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/connection/connector.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/forwarder.h"
#include "launcher/options/options.h"
#include "launcher/rendezvous/control_connection.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Another host's view of a run over several hosts: it does what host 0 says.
class Spoke : public Hosts {
 public:
  Spoke(
      const Options& options,
      const std::string& host_name,
      const std::string& token,
      Say say);

  int fd() const override { return loop_.fd(); }
  void dispatch() override { loop_.dispatch(); }
  void ready() override;
  std::optional<Placement> take_placement() override;
  void serve_store(int) override {}
  void report_failure() override;
  void report_signal(int signal) override;
  std::optional<StopOrder> take_order() override;
  void end(const HostEnd& end) override;
  std::optional<Verdict> take_verdict() override;

 private:
  using Clock = std::chrono::steady_clock;

  void tick();
  void dial();
  void dialed(Dialer::Outcome outcome);
  void retry(const std::string& why);
  void join(Dialer::Outcome outcome);
  void hear(const nlohmann::json& message);
  void start(const nlohmann::json& message);
  void lose(const std::string& why);
  void give_up(int code, const std::string& sentence);
  std::string endpoint() const;

  const Options& options_;
  const std::string host_name_;
  const std::string token_;
  const Bits256 job_;
  Say say_;
  EventLoop loop_;
  std::optional<Address> gate_;
  std::unique_ptr<Dialer> dialer_;
  Clock::time_point since_ = Clock::now();
  Clock::time_point next_dial_;
  Clock::time_point next_note_;
  int refusals_ = 0;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Forwarder> forwarder_;
  std::optional<Placement> placement_;
  std::optional<StopOrder> order_;
  std::optional<Verdict> verdict_;
  bool over_ = false;
};

} // namespace weft::launcher
