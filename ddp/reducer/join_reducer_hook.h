#pragma once

#include <cstddef>

namespace weft::ddp {

/// Connects a reducer with a Join, in which ranks may have run out of inputs.
class JoinReducerHook {
 public:
  JoinReducerHook() = default;
  JoinReducerHook(const JoinReducerHook&) = delete;
  JoinReducerHook& operator=(const JoinReducerHook&) = delete;
  virtual ~JoinReducerHook() = default;

  /// Called before the message about reachable parameters.
  virtual void before_reachable() = 0;
  /// Called when a backward that reduces begins, before its collectives. Does
  /// not block.
  virtual void begin() = 0;
  /// Called before the first bucket is reduced. Blocks until all other ranks
  /// are known to take part.
  /// Throws: JoinError if a rank has failed.
  virtual void confirm() = 0;
  /// Returns the divisor of this rank's gradients before the sum over a group:
  /// `initial` if all ranks have inputs, infinity if its gradients do not
  /// count.
  virtual double divisor(size_t group, double initial) = 0;
  /// Called when all gradients are ready. Buckets may still be in flight.
  virtual void gradients_done() = 0;
  /// `is_completed` means that gradients were reduced and published. Otherwise
  /// there was an error; `has_agreed_error` means that all ranks throw it after
  /// the same collectives.
  virtual void end(bool is_completed, bool has_agreed_error) = 0;
};

} // namespace weft::ddp
