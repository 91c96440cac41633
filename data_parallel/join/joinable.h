#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"
#include "mesh/device_mesh.h"

namespace weft::data_parallel {

class Join;

/// The named arguments of every join_hook(). DistributedDataParallel reads
/// "divide_by_initial_world_size" (true) and "weight_by_samples" (false).
using JoinKwargs = std::unordered_map<std::string, c10::IValue>;

/// The settings that a Join passes to each of its joinables.
struct JoinConfig {
  /// False if Join does nothing.
  bool enable = false;
  /// True if all ranks throw once one has no more inputs.
  bool throw_on_early_termination = false;
  /// True for the joinable whose notifications count.
  bool is_first_joinable = false;
};

/// The work of a rank without inputs for one joinable.
/// Source: torch/distributed/algorithms/join.py.
class JoinHook {
 public:
  virtual ~JoinHook() = default;
  /// Takes part in the collectives of one iteration of the ranks with inputs.
  virtual void main_hook() {}
  /// Called once after all ranks have run out of inputs. `is_last_joiner` is
  /// true if this rank was among the last.
  virtual void post_hook([[maybe_unused]] bool is_last_joiner) {}
  /// Returns true if main_hook() threw the same error on all ranks after the
  /// same collectives. If false, the groups are aborted.
  virtual bool has_agreed_error() const { return false; }
};

/// An object with collectives in each iteration that ranks without inputs can
/// shadow. It must call Join::notify_join_context(*this) before the first of
/// them in an iteration.
class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable();

  /// Creates the hook. Called once by each Join.
  virtual std::shared_ptr<JoinHook> join_hook(const JoinKwargs& kwargs) = 0;
  /// The device of the tensors to communicate.
  virtual c10::Device join_device() const = 0;
  /// The group of the ranks that may run out of inputs at different times.
  virtual mesh::Communicator join_process_group() const = 0;
  /// The ranks that have the same inputs as this one, e.g. those of tensor
  /// parallelism, and leave together. A mesh without dims if there are none.
  virtual mesh::DeviceMesh join_model_parallel_mesh() const { return {}; }
  /// Returns true if collectives of the last announced iteration are still to
  /// come, e.g. during gradient accumulation.
  virtual bool is_in_join_iteration() const { return false; }

  /// The settings of the Join that is active.
  const JoinConfig& join_config() const { return join_config_; }

 protected:
  /// The running Join, or null.
  Join* running_join() const { return join_; }
  /// Called when the Join has ended, also by an error.
  virtual void leave_join() {}
  /// Aborts the other groups in which ranks may wait for this rank after it
  /// failed: those other than join_process_group() and the model-parallel
  /// group.
  virtual void abort_join() {}

 private:
  friend class Join;
  JoinConfig join_config_;
  Join* join_ = nullptr;
};

} // namespace weft::data_parallel
