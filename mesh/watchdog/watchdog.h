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
// asks, and answers with what its ledgers say. The other looks at its own
// ledgers; when a thread of this rank has waited for long, or a collective has
// failed, it asks all ranks at once and compares the answers (hang_diagnosis.h,
// waits.h). If ranks called different things, wait for each other in a circle,
// or for one that left a step by an exception, it leaves the verdict on the
// board and rings again: every rank's listener then fails all its groups with
// it. While nobody waits, nothing is
// sent.

/// Looks after one rank's groups. Thread-safe.
class Watchdog : public GroupWatch,
                 public std::enable_shared_from_this<Watchdog> {
 public:
  /// Its threads run until end().
  static std::shared_ptr<Watchdog> begin(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size,
      WatchdogOptions options);
  /// For begin().
  Watchdog(
      StatusExchange status_exchange,
      int64_t rank,
      WatchdogOptions options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Tells the others that this rank has ended, unless a group has failed. A
  /// store that does not answer is waited for two seconds, not longer, and one
  /// whose process is stopped not at all: its threads are left to it.
  void end();

  void add(const std::string& key, const std::shared_ptr<GroupState>& group)
      override;
  GroupFailure publish_failure(const GroupFailure& failure) override;
  GroupFailure explain(const GroupFailure& failure) override;

  /// This rank left `what` by `cause`. See World::run_and_report_errors().
  void record_step_error(
      std::string_view what,
      const std::exception_ptr& cause);
  /// It goes on, whatever it left before.
  void clear_step_error() { has_step_error_ = false; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// Why this rank asks. kWarns: a thread has waited for so long that a user
  /// may want to know.
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
  void spawn_thread(std::function<void(Watchdog&)> chore);

  const int64_t rank_;
  const WatchdogOptions options_;
  /// Cloned, never used.
  const StatusExchange status_exchange_;
  GroupList groups_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  /// What to tell the others at the end.
  RankStatus last_;
  int threads_ = 0;
  bool store_is_gone_ = false;
  /// The inquiry that this rank answers next.
  uint64_t round_ = 0;
  /// When it last answered one, and heard that the user has been told.
  std::chrono::steady_clock::time_point answered_at_;
  std::chrono::steady_clock::time_point warned_at_;
  /// How many inquiries threads in explain() want, and were made for them.
  uint64_t wanted_ = 0;
  uint64_t made_ = 0;
  std::optional<HangDiagnosis> diagnosis_;
  /// What the newest inquiry said of those that are waited for.
  std::string waiting_for_;
  /// Who has the store: peer_process_text().
  std::string store_owner_;
  /// It was stopped when this rank last wanted to ask.
  bool is_store_owner_stopped_ = false;
  /// A thread in explain() has waited for its whole time.
  bool wants_stacks_ = false;
  std::atomic<bool> has_acknowledged_ = false;

  std::atomic<bool> has_record_ = false;

  /// What this rank left by an exception, and where it was then.
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
  /// The newest inquiry that it made, and how many ranks answered that.
  uint64_t asked_ = 0;
  int64_t num_replies_;
  /// How long a wait has to be to be looked into next, and to be told.
  std::chrono::nanoseconds next_poll_;
  std::chrono::nanoseconds next_warning_;
  /// A circle of waiting ranks seen by the inquiry before.
  std::string deadlock_cycle_;
};

// What is written beside the rings of the notice board: why somebody asks.

/// A thread waits for long.
inline constexpr const char* kStalled = "stalled";
/// Nobody asks: the user has been told of ranks that wait for long.
inline constexpr const char* kWarned = "warned";
/// A collective has failed.
inline constexpr const char* kFailed = "failed";
/// Nobody asks: a verdict is on the board.
inline constexpr const char* kDiagnosisPublished = "verdict";
/// Of the ranks named after it: what do your threads do?
inline constexpr const char* kStacks = "stacks";
/// Nobody asks: a rank wakes its own listener, which may end.
inline constexpr const char* kShutdown = "bye";

} // namespace weft::mesh
