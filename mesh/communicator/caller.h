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
// of each call. Each rank checks on its own that the numbers mean the same
// threads on all ranks: a thread that existed when another one made its first
// call might have been first. The older of two threads detects this if it calls
// second, and of two ranks that number the threads differently one detects it.
// An autograd thread calls for the last caller.

/// The caller of collectives: a thread, or the thread that it works for.
class Caller {
 public:
  /// Returns the caller of this thread.
  static Caller current();

 private:
  friend class CallerScope;
  explicit Caller(std::shared_ptr<const CallingThread> thread)
      : thread_(std::move(thread)) {}
  std::shared_ptr<const CallingThread> thread_;
};

/// Scope in which collectives of this thread are attributed to `caller`, for a
/// pool thread whose caller waits for it. Scopes end in their own thread, in
/// reverse order.
class CallerScope {
 public:
  explicit CallerScope(Caller caller);
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
  ~CallerScope();

 private:
  std::shared_ptr<const CallingThread> before_;
};

/// The callers of one group on one rank. Not thread-safe.
class Callers {
 public:
  /// Registers this thread, which creates the group, as caller 0.
  Callers();

  struct Entry {
    int64_t caller = 0;
    /// The reason why this thread may not call the group. Empty if it may.
    std::string conflict;
  };
  /// Registers that this thread starts `call`.
  Entry enter(const FlightRecorderEntry& call);

 private:
  struct Known {
    std::shared_ptr<const CallingThread> thread;
    int64_t caller;
  };

  std::shared_ptr<const CallingThread> last_;
  int64_t last_caller_ = 0;
  int64_t next_caller_ = 1;
  /// The threads that have called and have not ended.
  std::vector<Known> known_;
  /// System ids of threads that existed at another caller's first call.
  std::set<int64_t> beside_;
  /// A description of that caller, for messages.
  std::string newest_;
};

} // namespace weft::mesh
