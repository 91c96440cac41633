#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <c10/util/intrusive_ptr.h>

#include "base/unique_fd.h"
#include "lighthouse/wire.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::elastic {

/// The replica group of a worker.
struct GroupLife {
  lighthouse::GroupId id = 0;
  /// The number of the group, which all its lives have.
  int64_t number = 0;
  /// Whether weftrun has started the group again, so that others have the
  /// state.
  bool is_restarted = false;
  /// The number of groups that weftrun starts, or 0 if it is not known.
  int64_t groups = 0;
};

/// The connection of a worker to the lighthouse and the store of its weftrun.
/// Thread-safe.
class LighthouseLink : public std::enable_shared_from_this<LighthouseLink> {
 public:
  using OnReply = std::function<void(const lighthouse::Reply&)>;

  /// Takes the connection that weftrun --replica-size passes to its workers.
  /// Throws: UsageError if there is none.
  static std::shared_ptr<LighthouseLink> from_env();

  /// Takes the connection `fd` of a worker of `group`.
  LighthouseLink(base::UniqueFd fd, GroupLife group);
  /// Closes the connection. Must not be called by a reply's handler.
  ~LighthouseLink();
  LighthouseLink(const LighthouseLink&) = delete;
  LighthouseLink& operator=(const LighthouseLink&) = delete;

  const GroupLife& group() const { return group_; }
  /// Calls `on_reply`, which may be empty, for each reply from now on, on a
  /// thread of this object. Returns when no earlier one is running. Must not be
  /// called by one.
  void listen(OnReply on_reply);
  /// Throws: CommError if weftrun has gone.
  void send(const lighthouse::Message& message);
  /// Sends the request and waits for the answer.
  /// Throws: CommError if weftrun has gone, or after `timeout`.
  lighthouse::StoreAnswer ask(
      lighthouse::StoreRequest request,
      std::chrono::milliseconds timeout);

  /// Returns the store of the run. It keeps this object alive.
  c10::intrusive_ptr<c10d::Store> store();

 private:
  void read();
  void take(const lighthouse::Message& message);

  const base::UniqueFd fd_;
  const GroupLife group_;
  std::mutex send_mutex_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  uint64_t next_id_ = 1;
  /// The requests that wait, and their answers.
  std::map<uint64_t, std::optional<lighthouse::StoreAnswer>> answers_;

  /// Held while `on_reply_` runs.
  std::mutex reply_mutex_;
  OnReply on_reply_;

  std::thread thread_;
};

} // namespace weft::elastic
