#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "mesh/watchdog/hang_diagnosis.h"
#include "mesh/watchdog/rank_status.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Where ranks ask and answer each other: keys of the store. Inquiries have
/// numbers, from 0, and each rank hears all of them in order. One thread at a
/// time; a thread that waits in a board needs one of its own, over a clone of
/// the store.
/// Throws, in every method: std::exception if the store is gone.
class NoticeBoard {
 public:
  NoticeBoard(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size);
  int64_t world_size() const { return world_size_; }
  /// The same board, for another thread.
  NoticeBoard clone() const;

  /// Says which process this rank is.
  void introduce();
  /// Blocks until that rank has said so.
  std::string process_of(int64_t rank);

  /// Blocks until somebody asks as number `round`; returns what.
  std::string await_question(uint64_t round);
  void answer(uint64_t round, const RankSight& sight);

  /// How long answers may take.
  struct Patience {
    std::chrono::milliseconds least;
    /// Where a rank is silent whose process is not known to be gone or stopped.
    std::chrono::milliseconds most;
    /// From then on a tenth of a second.
    std::function<bool()> is_urgent;
  };
  /// Asks all ranks, this one too, as number `round`. Answers are by rank.
  std::vector<RankAnswer>
  ask(uint64_t round, const std::string& question, const Patience& patience);
  /// Wakes all listeners with a question.
  void ring(uint64_t round, const std::string& question);
  /// Wakes this rank's own.
  void ring_self(uint64_t round, const std::string& question);

  /// Leaves a verdict, unless there is one. Returns the one that counts.
  Verdict leave_verdict(const Verdict& verdict);
  std::optional<Verdict> verdict();
  /// Counts a rank that knows why a collective has failed.
  void note_heard();
  /// Waits until so many have been counted, for `limit` at most.
  void await_heard(int64_t count, std::chrono::milliseconds limit);

  /// This rank has ended all it had to do, and answers no more.
  void end(const RankSight& last);

 private:
  bool all_come(
      const std::vector<std::string>& keys,
      std::chrono::milliseconds limit,
      const std::function<bool()>& is_urgent);
  bool has_silent_rank(const std::vector<std::string>& keys);
  RankAnswer answer_at(const std::string& key);
  RankAnswer absent(int64_t rank);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  int64_t world_size_;
};

} // namespace weft::mesh
