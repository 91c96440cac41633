#pragma once

#include <cstddef>

namespace weft::ddp {

/// What a reducer has to tell, and to know, where some ranks may have run out
/// of inputs.
class JoinReducerHook {
 public:
  JoinReducerHook() = default;
  JoinReducerHook(const JoinReducerHook&) = delete;
  JoinReducerHook& operator=(const JoinReducerHook&) = delete;
  virtual ~JoinReducerHook() = default;

  /// The message of reachable parameters follows.
  virtual void before_reachable() = 0;
  /// A backward that reduces has begun; none of its collectives has. Waits for
  /// nobody.
  virtual void begin() = 0;
  /// Before the first bucket is reduced: blocks until it is known that all
  /// other ranks take part.
  /// Throws: JoinError.
  virtual void confirm() = 0;
  /// By what this rank's gradients are divided before they are added over a
  /// group: `initial` if all ranks have inputs, infinite if they do not count.
  virtual double divisor(size_t group, double initial) = 0;
  /// All gradients are there; buckets may be under way.
  virtual void gradients_done() = 0;
  /// `is_completed`: gradients were reduced and published; otherwise there was
  /// an error, and `has_agreed_error`: all ranks throw it, after the same
  /// collectives.
  virtual void end(bool is_completed, bool has_agreed_error) = 0;
};

} // namespace weft::ddp
