#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/connection/event_loop.h"
#include "lighthouse/key_value_store.h"
#include "lighthouse/lighthouse.h"
#include "lighthouse/wire.h"

namespace weft::launcher {

/// The lighthouse of the replica groups of this host and the store through
/// which the groups of an epoch meet. Each worker has a connection to it, which
/// it inherits; no port is opened.
class Coordinator {
 public:
  /// The groups of the first epoch, in the number of which it waits.
  explicit Coordinator(lighthouse::LighthouseOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// A descriptor that is readable when dispatch() has something to do.
  int fd() const { return loop_.fd(); }
  void dispatch() { loop_.dispatch(); }

  /// Opens the connection of worker `local_rank`, which belongs to `group`, and
  /// returns the end for the worker. An earlier one of the same worker is
  /// closed.
  base::UniqueFd connect_worker(int local_rank, lighthouse::GroupId group);
  /// Takes the news that a worker of the group has ended, and why if it failed.
  void lose(lighthouse::GroupId group, const std::string& why = "");
  /// Takes the news that a signal ends the whole run. To be called before it is
  /// passed on to workers, which ask whether they are meant alone.
  void end_run();
  /// Takes the news that a group has done all its steps.
  void finish(lighthouse::GroupId group);
  /// Returns the groups to end, which the others cannot go on without and do
  /// not hear from.
  const std::vector<lighthouse::GroupId>& groups_to_end() const {
    return lighthouse_.groups_to_end();
  }
  const lighthouse::Lighthouse& lighthouse() const { return lighthouse_; }

 private:
  struct Worker {
    base::UniqueFd fd;
    lighthouse::GroupId group = 0;
    lighthouse::MessageReader incoming = {};
    std::string outgoing = {};
  };

  void handle(int local_rank, uint32_t events);
  bool read_some(Worker& worker);
  void take(int local_rank, const lighthouse::Message& message);
  void send(int local_rank, const lighthouse::Message& message);
  bool write_some(Worker& worker);
  void disconnect(int local_rank);
  /// Decides, and tells the groups whose directive has changed, and `reporter`.
  void update(std::optional<lighthouse::GroupId> reporter = std::nullopt);
  void erase_former_epochs();
  void set(const std::string& key, const std::string& value);
  void note_end(lighthouse::GroupId group, const std::string& why);

  EventLoop loop_;
  lighthouse::Lighthouse lighthouse_;
  lighthouse::KeyValueStore store_;
  std::map<int, Worker> workers_;
  std::map<
      lighthouse::GroupId,
      std::pair<lighthouse::Directive, lighthouse::EpochNumber>>
      told_;
  lighthouse::EpochNumber epoch_;
  std::set<lighthouse::GroupId> noted_ends_;
};

} // namespace weft::launcher
