#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "data_parallel/join/join.h"
#include "data_parallel/join/joinable.h"
#include "fsdp/schedule.h"
#include "mesh/communicator/communicator.h"

namespace weft::fsdp {

// Note [Ranks without inputs]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A rank without inputs still has its rows of every parameter: it takes part in
// each gather and reduction of the others, and steps. Which units they use, and
// how often, depends on their inputs. So ranks with inputs announce each
// collective of a unit by an event, a small all_reduce that is sent before it.
// A rank without inputs contributes zeros, or what it accumulated before it ran
// out of inputs.
//
// An iteration begins with the first forward after a reduction and ends with
// the next reduction, whatever is accumulated between. A forward without grad
// mode outside of an iteration is one of its own. If all ranks run out of
// inputs in an iteration, no rank announces anything, and it ends.

/// The part of a FullyShardedDataParallel in one Join.
/// Source: torch/distributed/algorithms/join.py, for the interface. PyTorch's
/// FSDP has no Join.
class FsdpJoin : public data_parallel::JoinHook, public Schedule::Observer {
 public:
  /// Throws: c10::ValueError for an argument that is not supported.
  FsdpJoin(
      data_parallel::Joinable& model,
      data_parallel::Join& join,
      Schedule& schedule,
      mesh::Communicator ranks,
      const data_parallel::JoinKwargs& kwargs);
  ~FsdpJoin() override;
  FsdpJoin(const FsdpJoin&) = delete;
  FsdpJoin& operator=(const FsdpJoin&) = delete;

  /// Must be called before the model is called, and after it.
  void begin_forward();
  void end_forward();
  bool is_in_iteration() const { return is_open_; }
  /// Returns true if the last iteration without inputs of this rank had a
  /// reduction, so that an optimizer steps.
  bool has_reduced() const { return has_reduced_; }
  void set_has_optimizer() { has_optimizer_ = true; }

  void main_hook() override;

  void before_gather(size_t unit) override;
  void before_reduce(size_t unit, bool over_replicas) override;
  void end_backward(bool is_complete) override;

 private:
  void check_optimizer() const;
  void set_divisor();
  void send(int64_t event);
  int64_t receive();

  data_parallel::Joinable& model_;
  data_parallel::Join& join_;
  Schedule& schedule_;
  mesh::Communicator ranks_;
  bool divides_by_initial_ = true;
  bool has_optimizer_ = false;
  bool is_open_ = false;
  /// True if a forward without grad mode is the iteration.
  bool is_inference_ = false;
  bool has_reduced_ = false;
};

} // namespace weft::fsdp
