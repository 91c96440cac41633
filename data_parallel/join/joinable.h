#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

class Join;

/// What is passed to every join_hook(), by name. DistributedDataParallel reads
/// "divide_by_initial_world_size" (true) and "weight_by_samples" (false).
using JoinKwargs = std::unordered_map<std::string, c10::IValue>;

/// What a Join tells each of its joinables.
struct JoinConfig {
  bool enable = false;
  bool throw_on_early_termination = false;
  /// The one whose notifications count.
  bool is_first_joinable = false;
};

/// What a rank that has run out of inputs does for one joinable.
/// Source: torch/distributed/algorithms/join.py.
class JoinHook {
 public:
  virtual ~JoinHook() = default;
  /// Takes part in the collectives of one iteration of the ranks that still
  /// have inputs.
  virtual void main_hook() {}
  /// Once, when all ranks have run out. `is_last_joiner`: this rank was among
  /// those that did so last.
  virtual void post_hook([[maybe_unused]] bool is_last_joiner) {}
  /// Whether what main_hook() threw was thrown on all ranks, after the same
  /// collectives; otherwise the groups are aborted.
  virtual bool has_agreed_error() const { return false; }
};

/// Something with collectives in each iteration, which ranks without inputs can
/// shadow. Before the first of them in an iteration it calls
/// Join::notify_join_context(*this).
class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable();

  /// Made once by each Join.
  virtual std::shared_ptr<JoinHook> join_hook(const JoinKwargs& kwargs) = 0;
  /// Where tensors to communicate lie.
  virtual c10::Device join_device() const = 0;
  /// The ranks that may run out of inputs at different times.
  virtual mesh::Communicator join_process_group() const = 0;
  /// The ranks that have the same inputs as this one, e.g. those of tensor
  /// parallelism: they leave together. Of no dims if there are none.
  virtual mesh::DeviceMesh join_model_parallel_mesh() const { return {}; }
  /// Whether collectives of the iteration that this rank announced last are
  /// still to come, e.g. while it accumulates gradients.
  virtual bool is_in_join_iteration() const { return false; }

  const JoinConfig& join_config() const { return join_config_; }

 protected:
  /// The one that runs now, or null.
  Join* running_join() const { return join_; }
  /// The Join has ended, also by an error.
  virtual void leave_join() {}
  /// Aborts the groups beside join_process_group() and the row's in which
  /// others may wait for this rank, which has failed.
  virtual void abort_join() {}

 private:
  friend class Join;
  JoinConfig join_config_;
  Join* join_ = nullptr;
};

} // namespace weft::ddp
