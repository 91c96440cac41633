#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/communicator/group_watch.h"
#include "mesh/communicator/work.h"
#include "mesh/watchdog/group_list.h"
#include "mesh/watchdog/hang_diagnosis.h"
#include "mesh/watchdog/options.h"
#include "mesh/watchdog/rank_status.h"
#include "mesh/watchdog/status_exchange.h"

namespace weft::mesh {

// Note [Hang diagnosis]
// ~~~~~~~~~~~~~~~~~~~~~
// Each rank has two threads. One listens: it sleeps in the store until somebody
// asks, and answers with what its flight recorders say. The other looks at its
// own flight recorders; when a thread of this rank has waited for long, or a
// collective has failed, it asks all ranks at once and compares the answers
// (hang_diagnosis.h, waits.h). If ranks called different things, wait for each
// other in a cycle, or for one that left a step by an exception, it leaves the
// verdict on the board and rings again: every rank's listener then fails all
// its groups with it. While nobody waits, nothing is sent.

/// Supervises the groups of one rank. Thread-safe.
class Watchdog : public GroupWatch,
                 public std::enable_shared_from_this<Watchdog> {
 public:
  /// Creates the watchdog and starts its threads, which run until end().
  static std::shared_ptr<Watchdog> begin(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size,
      WatchdogOptions options);
  /// Used by begin().
  Watchdog(
      StatusExchange status_exchange,
      int64_t rank,
      WatchdogOptions options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Publishes that this rank has ended, unless a group has failed. Waits up to
  /// 2 s for the flight record that is being written and for the store; not for
  /// the store if its process is stopped (SIGSTOP). Threads that the store
  /// blocks are detached.
  void end();

  void add(const std::string& key, const std::shared_ptr<GroupState>& group)
      override;
  GroupFailure publish_failure(const GroupFailure& failure) override;
  GroupFailure explain(const GroupFailure& failure) override;

  /// Records that this rank left the part `what` of a step by the exception
  /// `cause`. See World::run_and_report_errors().
  void record_step_error(
      std::string_view what,
      const std::exception_ptr& cause);
  /// Clears the recorded exception: this rank continues.
  void clear_step_error() { has_step_error_ = false; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// The count of running threads that a new thread belongs to.
  using ThreadCount = int Watchdog::*;
  /// The reason for an inquiry. kWarns: a thread has waited long enough to warn
  /// the user.
  enum class Reason { kStalled, kWarns, kFailed };

  RankStatus status() const;

  void listen();
  bool begin_reply(const std::string& query);
  void start_background_work(const std::string& query);
  void start_flight_record();
  static void dump_flight_record(
      const std::string& prefix,
      const std::vector<GroupRecord>& records,
      int64_t rank);
  void show_stacks();
  void take(const HangDiagnosis& diagnosis);
  void adopt_published_diagnosis(StatusExchange& status_exchange);

  void poll_groups();
  void investigate_wait(Lock& lock, std::chrono::nanoseconds waited);
  void query_ranks(Lock& lock, Reason reason);
  std::string query_and_diagnose(Reason reason, uint64_t wanted);
  std::string report_stopped_store_owner(
      Reason reason,
      const std::string& store_owner);
  bool is_urgent(uint64_t wanted) const;
  void diagnose(const std::vector<RankReply>& replies);
  void request_stacks(const std::vector<RankReply>& replies);
  bool is_first_to_wait(const std::vector<RankReply>& replies) const;
  void warn(const std::string& waiting_for) const;

  void shut_down();
  void drain();
  void acknowledge_failure(StatusExchange& status_exchange);
  void spawn_thread(ThreadCount count, std::function<void(Watchdog&)> run);

  const int64_t rank_;
  const WatchdogOptions options_;
  /// A template for clones; not used itself.
  const StatusExchange status_exchange_;
  GroupList groups_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  /// The last status, published at the end.
  RankStatus last_;
  /// The threads that listen and ask, which a stopped store blocks, and those
  /// that write a flight record or stacks, which need no store.
  int store_threads_ = 0;
  int writing_threads_ = 0;
  bool store_is_gone_ = false;
  /// The number of the inquiry that this rank answers next.
  uint64_t round_ = 0;
  /// The times at which it last answered an inquiry and last learned that the
  /// user was warned.
  std::chrono::steady_clock::time_point answered_at_;
  std::chrono::steady_clock::time_point warned_at_;
  /// The number of inquiries that threads in explain() requested, and the
  /// number made for them.
  uint64_t wanted_ = 0;
  uint64_t made_ = 0;
  std::optional<HangDiagnosis> diagnosis_;
  /// The ranks that are waited for, by the newest inquiry.
  std::string waiting_for_;
  /// The process that serves the store, as peer_process_text() describes it.
  std::string store_owner_;
  /// True if that process was stopped at this rank's last attempt to ask.
  bool is_store_owner_stopped_ = false;
  /// True after a thread in explain() has waited for its full time.
  bool wants_stacks_ = false;
  std::atomic<bool> has_acknowledged_ = false;

  std::atomic<bool> has_record_ = false;

  /// The exception by which this rank left a part of a step, and the groups'
  /// positions at that time.
  struct StepError {
    std::string text;
    int64_t at_ns = 0;
    std::map<std::string, uint64_t> positions;
  };
  StepError step_error_;
  std::atomic<bool> has_step_error_ = false;

  // Used by the thread that listens alone.
  bool has_shown_stacks_ = false;

  // Used by the thread that looks alone.
  std::optional<StatusExchange> asking_;
  /// The newest inquiry that this rank made and the number of replies to it.
  uint64_t asked_ = 0;
  int64_t num_replies_;
  /// The waits after which this rank next makes an inquiry and next warns the
  /// user.
  std::chrono::nanoseconds next_poll_;
  std::chrono::nanoseconds next_warning_;
  /// A deadlock cycle found by the previous inquiry.
  std::string deadlock_cycle_;
};

// The messages on the notice board, beside the ring buffers. A rank answers a
// query; a notice needs no answer.

/// Query: a thread has waited for long.
inline constexpr const char* kStalled = "stalled";
/// Notice: another rank has already printed the warning.
inline constexpr const char* kWarned = "warned";
/// Query: a collective has failed.
inline constexpr const char* kFailed = "failed";
/// Notice: a diagnosis is published.
inline constexpr const char* kDiagnosisPublished = "verdict";
/// Query: the stacks of the threads of the ranks listed after it.
inline constexpr const char* kStacks = "stacks";
/// Notice: wakes this rank's own listener so that it ends.
inline constexpr const char* kShutdown = "bye";

} // namespace weft::mesh
