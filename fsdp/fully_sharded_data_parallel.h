#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "data_parallel/output_tensors.h"
#include "data_parallel/wrapped_module.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "fsdp/fully_shard.h"
#include "fsdp/options.h"
#include "mesh/device_mesh.h"

namespace weft::fsdp {

using ddp::NoSyncGuard;

/// What a unit of a model holds now.
struct UnitInfo {
  /// The module's fully qualified name; "the model" for the outermost one.
  std::string name;
  std::vector<std::string> parameters;
  /// Bytes of its parameters unsharded.
  int64_t unsharded_bytes = 0;
  bool is_unsharded = false;
};

/// What FullyShardedDataParallel does whatever the module's type.
class FullyShardedDataParallelBase {
 public:
  FullyShardedDataParallelBase(const FullyShardedDataParallelBase&) = delete;
  FullyShardedDataParallelBase& operator=(const FullyShardedDataParallelBase&) =
      delete;

  /// Accumulates unsharded gradients without communication while the guard
  /// lives, as DistributedDataParallel does. Without it each backward reduces,
  /// and adds to the sharded gradients of those before.
  NoSyncGuard no_sync();

  /// Compares the units of all ranks and makes messages of them: what the first
  /// forward does, unless called before.
  /// Collective: all ranks of the mesh, the first time; blocks.
  /// Throws: c10::ValueError naming a parameter that has no values yet;
  /// mesh::DisagreementError if the ranks' units differ.
  void synchronize_parameters();

  const mesh::DeviceMesh& mesh() const;
  /// The units, in the order of their registration.
  std::vector<UnitInfo> units() const;

  /// The most bytes of unsharded parameters that there were at once, and of
  /// messages: what is gathered, and gradients on their way.
  int64_t peak_unsharded_bytes() const;
  int64_t peak_message_bytes() const;
  /// Bytes that are kept for either now, in use or not.
  int64_t held_bytes() const;

  /// Gathers the unit of a module by hand, before a forward or between two, and
  /// gives it away. What is written to parameters meanwhile is an error.
  /// Collective: all ranks of the mesh; blocks.
  /// Throws: c10::ValueError if the module is no unit of this model.
  void unshard(const torch::nn::Module& module);
  void reshard(const torch::nn::Module& module);

  /// Parameters and buffers on the mesh of all dims, each rank's rows of the
  /// former. They share the module's memory. `ignore` names what is left out.
  /// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
  dtensor::StateDict state_dict(const std::set<std::string>& ignore = {}) const;
  /// The same for an optimizer of the module's parameters; see
  /// dtensor/nn/optimizer_state.h.
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const;
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const;

 protected:
  FullyShardedDataParallelBase(
      std::shared_ptr<torch::nn::Module> module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options,
      const ScheduleOptions& schedule);
  ~FullyShardedDataParallelBase();

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
      end_forward(ddp::tensors_of(output));
      return output;
    });
  }

 private:
  friend class ForwardScope;
  friend class FullParameters;

  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);
  void abandon_forward();

  struct State;
  std::unique_ptr<State> state_;
};

/// While one lives, modules of the model may be called as inside its forward():
/// for methods such as generate(). Units are gathered when they are used, and
/// given away as in forward().
/// Collective: all ranks of the mesh do the same inside.
/// Source: torch.distributed.fsdp, register_fsdp_forward_method.
class [[nodiscard]] ForwardScope {
 public:
  explicit ForwardScope(FullyShardedDataParallelBase& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope() noexcept(false);

 private:
  FullyShardedDataParallelBase& model_;
  int exceptions_;
};

/// While one lives, all parameters are unsharded: each rank has the whole
/// model. Not inside of a forward or a backward.
/// Collective: all ranks of the mesh; blocks.
/// Source: torch/distributed/fsdp/fully_sharded_data_parallel.py,
/// summon_full_params.
class [[nodiscard]] FullParameters {
 public:
  /// `write_back`: what each rank wrote to its own rows stays. Without, it is
  /// an error to write.
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

/// Trains a module of which each rank holds a part: its parameters, gradients
/// and optimizer state are divided over the ranks of a mesh dim, and other
/// ranks' parts are here while a unit (fully_shard()) computes. Ranks compute
/// different batches. Callable like the module. Parameters may be DTensors on
/// other mesh dims.
/// Collective: every forward and backward; all ranks use the same units in the
/// same order.
/// Source: torch/distributed/fsdp.
template <class M>
class FullyShardedDataParallel : public FullyShardedDataParallelBase {
 public:
  /// Makes the module a unit, of the parameters that are in none, unless it is
  /// one. `dp`: the mesh of one dim that its units were made with. See
  /// fully_shard() for what has to come before and after.
  /// Throws: as fully_shard(); c10::ValueError for a unit on another mesh.
  FullyShardedDataParallel(
      std::shared_ptr<M> module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options = {},
      const ScheduleOptions& schedule = {})
      : FullyShardedDataParallelBase(module, dp, options, schedule),
        module_(std::move(module)) {}

  FullyShardedDataParallel(
      const torch::nn::ModuleHolder<M>& module,
      const mesh::DeviceMesh& dp,
      const FullyShardOptions& options = {},
      const ScheduleOptions& schedule = {})
      : FullyShardedDataParallel(module.ptr(), dp, options, schedule) {}

  /// The module's forward(), with the hooks that act on it. Where its output
  /// has its tensors says data_parallel/output_tensors.h. What it throws on
  /// some ranks alone, the others are told: see World::run_and_report_errors().
  template <class... Args>
  auto forward(Args&&... args) {
    return run_forward([&] {
      return ddp::call_wrapped(module_, std::forward<Args>(args)...);
    });
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }

 private:
  std::shared_ptr<M> module_;
};

} // namespace weft::fsdp
