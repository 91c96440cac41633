#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "data_parallel/join/joinable.h"
#include "data_parallel/output_tensors.h"
#include "data_parallel/wrapped_module.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "fsdp/fully_shard.h"
#include "fsdp/options.h"
#include "mesh/device_mesh.h"

namespace weft::fsdp {

using data_parallel::NoSyncGuard;

/// The current state of a unit.
struct UnitInfo {
  /// The module's fully qualified name. "the model" is the outermost one.
  std::string name;
  /// The fully qualified names of its parameters.
  std::vector<std::string> parameters;
  /// The size of its unsharded parameters in bytes.
  int64_t unsharded_bytes = 0;
  /// True if its parameters are gathered.
  bool is_unsharded = false;
};

/// The part of FullyShardedDataParallel that does not depend on the module's
/// type.
class FullyShardedDataParallelBase : public data_parallel::Joinable {
 public:
  /// Accumulates unsharded gradients without communication during the guard's
  /// lifetime, like DistributedDataParallel. Without it each backward reduces,
  /// and adds to the existing sharded gradients.
  NoSyncGuard no_sync();

  /// Accumulates gradients that are reduced over the dim that shards, but not
  /// over the replicas of a 2-D mesh, during the guard's lifetime. .grad() is
  /// then Partial on the first mesh dim. The next backward outside the guard
  /// sums them over the replicas. Has no effect without replicas.
  /// Source: torch/distributed/fsdp, set_requires_all_reduce.
  NoSyncGuard no_all_reduce();

  /// Compares the units of all ranks and prepares their messages. The first
  /// forward calls it unless it was called before.
  /// Collective: all ranks of the mesh, the first time; with reshard_to, all
  /// ranks of its root mesh; blocks.
  /// Throws: c10::ValueError naming a parameter without values;
  /// mesh::DisagreementError if the ranks' units differ.
  void synchronize_parameters();

  /// The mesh over which parameters are sharded.
  const mesh::DeviceMesh& mesh() const;
  /// Returns the units in registration order.
  std::vector<UnitInfo> units() const;

  /// The peak bytes of unsharded parameters.
  int64_t peak_unsharded_bytes() const;
  /// The peak bytes of gathered data and of gradients in flight.
  int64_t peak_message_bytes() const;
  /// The bytes that are currently kept for both, in use or not.
  int64_t held_bytes() const;

  /// Gathers the unit of a module manually, before a forward or between two.
  /// Writing to the gathered parameters is an error.
  /// Collective: all ranks of the mesh; blocks.
  /// Throws: c10::ValueError if the module is not a unit of this model.
  void unshard(const torch::nn::Module& module);
  /// Frees the gathered parameters of the unit; see unshard().
  void reshard(const torch::nn::Module& module);

  /// Sets the units that are gathered while the unit of `module` runs forward,
  /// in this order. Replaces what ScheduleOptions selects for this unit; an
  /// empty list means no prefetch. Each of `next` should be used later in the
  /// pass; otherwise it only costs memory.
  /// Collective: like synchronize_parameters(). All ranks must make the same
  /// calls.
  /// Throws: c10::ValueError if a module is not a unit of this model.
  /// Source: torch/distributed/fsdp/_fully_shard/_fully_shard.py,
  /// set_modules_to_forward_prefetch.
  void set_modules_to_forward_prefetch(
      const torch::nn::Module& module,
      const std::vector<torch::nn::Module*>& next);
  /// Like set_modules_to_forward_prefetch(), while the unit runs backward.
  /// Source: torch/distributed/fsdp/_fully_shard/_fully_shard.py,
  /// set_modules_to_backward_prefetch.
  void set_modules_to_backward_prefetch(
      const torch::nn::Module& module,
      const std::vector<torch::nn::Module*>& next);

  /// Registers a hook that sums gradients over the replicas of a 2-D mesh from
  /// the next backward on. A bucket is one unit's shard of gradients of one
  /// dtype. The hook must not keep state, such as error feedback. Must be
  /// called once, while no gradients are accumulated by no_all_reduce().
  /// Collective: all ranks of the mesh with the same hook; blocks.
  /// Throws: c10::ValueError for a null or second hook, one with state, one
  /// whose result does not match its declaration, or a mesh without replicas.
  void register_comm_hook(std::shared_ptr<data_parallel::CommHook> hook);

  /// Returns parameters, sharded by rows, and buffers on the mesh of all dims.
  /// They share the module's memory. The names in `ignore` are left out.
  /// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
  dtensor::StateDict state_dict(const std::set<std::string>& ignore = {}) const;
  /// Returns or loads the state of an optimizer of the module's parameters in
  /// the same form; see dtensor/nn/optimizer_state.h.
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const;
  /// Loads what optimizer_state_dict() returned.
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const;

  /// Part of a ddp::Join, which must also have a fsdp::JoinableOptimizer.
  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;
  bool is_in_join_iteration() const override;
  /// Used by JoinableOptimizer.
  bool has_reduced_in_join() const;
  /// Used by JoinableOptimizer.
  void set_join_has_optimizer();

 protected:
  /// Shards the parameters; see FullyShardedDataParallel.
  FullyShardedDataParallelBase(
      std::shared_ptr<torch::nn::Module> module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options,
      const ScheduleOptions& schedule);
  ~FullyShardedDataParallelBase() override;

  /// Returns the dtype to which arguments of forward() are cast, if any.
  std::optional<c10::ScalarType> input_dtype() const;

  /// Runs `body`, which returns forward()'s output, as a forward pass.
  template <class Body>
  auto run_forward(const Body& body) {
    return mesh().world().run_and_report_errors("the forward pass", [&] {
      begin_forward();
      auto output = [&] {
        try {
          return body();
        } catch (...) {
          abandon_forward();
          throw;
        }
      }();
      end_forward(data_parallel::tensors_of(output));
      return output;
    });
  }

 private:
  friend class ForwardScope;
  friend class FullParameters;

  void leave_join() override;
  void abort_join() override;
  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);
  void abandon_forward();

  struct State;
  std::unique_ptr<State> state_;
};

/// Scope in which modules of the model may be called as inside its forward(),
/// for methods such as generate(). Units are gathered and resharded as in
/// forward().
/// Collective: all ranks of the mesh must make the same calls inside.
/// Source: torch.distributed.fsdp, register_fsdp_forward_method.
class [[nodiscard]] ForwardScope {
 public:
  /// Begins a forward pass of `model`, which the destructor ends.
  explicit ForwardScope(FullyShardedDataParallelBase& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope() noexcept(false);

 private:
  FullyShardedDataParallelBase& model_;
  int exceptions_;
};

/// Scope in which all parameters are unsharded: each rank has the full model,
/// in full precision even if a unit has a mixed precision policy. Not allowed
/// during a forward or backward. Collective: all ranks of the mesh; blocks.
/// Source: torch/distributed/fsdp/fully_sharded_data_parallel.py,
/// summon_full_params.
class [[nodiscard]] FullParameters {
 public:
  /// With `write_back` each rank's writes to its own rows are kept. Without it
  /// writing is an error.
  explicit FullParameters(
      FullyShardedDataParallelBase& model,
      bool write_back = false);
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;
  ~FullParameters() noexcept(false);

 private:
  FullyShardedDataParallelBase& model_;
  bool write_back_;
  int exceptions_;
};

/// Trains a module whose parameters, gradients and optimizer state are sharded
/// over the ranks of a mesh dim. The other ranks' shards are gathered while a
/// unit (fully_shard()) computes. Ranks compute different batches. Callable
/// like the module. Parameters may be DTensors on other mesh dims.
/// Collective: every forward and backward; all ranks use the same units in the
/// same order.
/// Source: torch/distributed/fsdp.
template <class M>
class FullyShardedDataParallel : public FullyShardedDataParallelBase {
 public:
  /// Makes the module a unit of the parameters that are in none, unless it is
  /// one. `dp` is the mesh of its units, of 1 or 2 dims. See fully_shard() for
  /// them and for the required order of calls.
  /// Throws: like fully_shard(); c10::ValueError for a unit on another mesh.
  FullyShardedDataParallel(
      std::shared_ptr<M> module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options = {},
      const ScheduleOptions& schedule = {})
      : FullyShardedDataParallelBase(module, dp, options, schedule),
        module_(std::move(module)) {}

  /// Like the constructor above, with a module holder.
  FullyShardedDataParallel(
      const torch::nn::ModuleHolder<M>& module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options = {},
      const ScheduleOptions& schedule = {})
      : FullyShardedDataParallel(module.ptr(), dp, options, schedule) {}

  /// Calls the module's forward() with its hooks.
  /// data_parallel/output_tensors.h describes how tensors are found in its
  /// output. An exception on some ranks is reported to the others: see
  /// World::run_and_report_errors().
  template <class... Args>
  auto forward(Args&&... args) {
    return run_forward([&] {
      return data_parallel::call_wrapped(
          module_,
          data_parallel::cast_argument(
              std::forward<Args>(args), input_dtype())...);
    });
  }

  /// Calls forward().
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// The wrapped module.
  M& module() { return *module_; }
  /// The wrapped module.
  const M& module() const { return *module_; }

 private:
  std::shared_ptr<M> module_;
};

} // namespace weft::fsdp
