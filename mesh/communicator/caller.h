#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::mesh {

struct FlightRecorderEntry;
struct CallingThread;

// Note [One caller]
// ~~~~~~~~~~~~~~~~~
// A group serves one caller: its collectives match by their order, and calls of
// two threads have one that all ranks share only if the program fixes it. The
// threads that call on a group are numbered in the order of their first calls,
// from 0 for the one that made it, and the number is part of what ranks compare
// of each call. That the numbers mean the same threads on all ranks is seen on
// each rank alone: a thread that lived already when another one made its first
// call might have been first. Of two threads, the older one finds that where it
// comes second, and two ranks that number them differently are two such places
// of which one sees it. A thread of autograd's calls for whoever called last.

/// Who calls collectives: a thread, or one that it calls for.
class Caller {
 public:
  /// This thread's.
  static Caller current();

 private:
  friend class CallerScope;
  explicit Caller(std::shared_ptr<const CallingThread> thread)
      : thread_(std::move(thread)) {}
  std::shared_ptr<const CallingThread> thread_;
};

/// While it lives, what this thread calls counts as `caller`'s: for a thread
/// of a pool that works for another one which waits for it, so that the program
/// orders their calls. Leaves in the thread that it was made in, the last one
/// made first.
class CallerScope {
 public:
  explicit CallerScope(Caller caller);
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
  ~CallerScope();

 private:
  std::shared_ptr<const CallingThread> before_;
};

/// The callers of one group, on one rank. Not thread-safe.
class Callers {
 public:
  /// This thread makes the group, and is caller 0.
  Callers();

  struct Entry {
    int64_t caller = 0;
    /// Why this thread may not call; empty if it may.
    std::string conflict;
  };
  /// This thread begins `call`.
  Entry enter(const FlightRecorderEntry& call);

 private:
  struct Known {
    std::shared_ptr<const CallingThread> thread;
    int64_t caller;
  };

  std::shared_ptr<const CallingThread> last_;
  int64_t last_caller_ = 0;
  int64_t next_caller_ = 1;
  /// Those that may call again.
  std::vector<Known> known_;
  /// Threads, by the system's numbers, that lived at another one's first call.
  std::set<int64_t> beside_;
  /// Whose that was, for messages.
  std::string newest_;
};

} // namespace weft::mesh
