#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/log.h"
#include "launcher/connection/connector.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/forwarder.h"
#include "launcher/options/options.h"
#include "launcher/rendezvous/control_connection.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// The rendezvous on a host other than host 0, for a run over several hosts. It
/// follows host 0.
class RendezvousClient : public Rendezvous {
 public:
  RendezvousClient(
      const Options& options,
      const std::string& host_name,
      const std::string& token,
      base::Logger log);

  int fd() const override { return loop_.fd(); }
  void dispatch() override { loop_.dispatch(); }
  void ready() override;
  std::optional<RankAssignment> take_rank_assignment() override;
  void serve_store(int) override {}
  void report_failure() override;
  void report_signal(int signal) override;
  std::optional<StopRequest> take_stop_request() override;
  void end(const HostResult& end) override;
  std::optional<RunResult> take_result() override;

 private:
  using Clock = std::chrono::steady_clock;

  void tick();
  void connect_to_server();
  void on_connected(Connector::Outcome outcome);
  void retry(const std::string& why);
  void join(Connector::Outcome outcome);
  void on_message(const nlohmann::json& message);
  void start(const nlohmann::json& message);
  void on_disconnect(const std::string& why);
  void give_up(int code, const std::string& sentence);
  std::string endpoint() const;

  const Options& options_;
  const std::string host_name_;
  const std::string token_;
  const Bits256 job_;
  base::Logger log_;
  EventLoop loop_;
  std::optional<Address> server_address_;
  std::unique_ptr<Connector> connector_;
  Clock::time_point since_ = Clock::now();
  Clock::time_point next_connect_;
  Clock::time_point next_note_;
  int auth_failures_ = 0;
  std::unique_ptr<ControlConnection> link_;
  std::unique_ptr<Forwarder> forwarder_;
  std::optional<RankAssignment> rank_assignment_;
  std::optional<StopRequest> order_;
  std::optional<RunResult> run_result_;
  bool over_ = false;
};

} // namespace weft::launcher
