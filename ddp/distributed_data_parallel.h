#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "data_parallel/join/join.h"
#include "data_parallel/join/joinable.h"
#include "data_parallel/output_tensors.h"
#include "data_parallel/parameters/module_state.h"
#include "data_parallel/wrapped_module.h"
#include "ddp/reducer/logging_data.h"
#include "ddp/reducer/optimizer_in_backward.h"
#include "ddp/reducer/options.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

enum class BufferCommHookLocation { PRE_FORWARD, POST_FORWARD };

/// Makes the buffers of all replicas alike, in place. Collective: all replicas.
using BufferCommHook = std::function<void(const std::vector<NamedTensor>&)>;

/// What DistributedDataParallel does whatever the module's type.
class DistributedDataParallelBase : public Joinable {
 public:
  struct State;

  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) =
      delete;

  /// Accumulates gradients without communication while the guard lives.
  NoSyncGuard no_sync();

  /// Runs `body`, this rank's loop over its inputs, of which other replicas may
  /// have more or fewer: a Join of this alone. With
  /// divide_by_initial_world_size gradients are divided by the number of
  /// replicas, and otherwise by how many of them have inputs.
  /// Collective: all ranks of the model's mesh.
  void join(
      const std::function<void()>& body,
      bool divide_by_initial_world_size = true,
      bool enable = true,
      bool throw_on_early_termination = false);
  std::shared_ptr<JoinHook> join_hook(const JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;
  bool is_in_join_iteration() const override;
  /// Brings what `optimizer` keeps of the module's parameters, as a replica
  /// that trained last has it, to all: what JoinableOptimizer does.
  /// Collective: all replicas, in the post hooks of a Join of this.
  void sync_joinable_optimizer(torch::optim::Optimizer& optimizer);

  /// Compares the replicas, gives them the first one's values and starts to
  /// listen for gradients: at construction, or for a model whose parameters
  /// are deferred at the first forward, unless called before.
  /// Collective: all ranks of the mesh, the first time; blocks.
  /// Throws: c10::ValueError naming a parameter that has no values yet;
  /// mesh::DisagreementError if the replicas differ.
  void synchronize_parameters();

  const mesh::DeviceMesh& mesh() const;

  /// Names of the parameters whose gradients are reduced together, in the
  /// order of their reduction: by reversed registration until the first
  /// synchronised backward, in the order of that backward from then on.
  std::vector<std::vector<std::string>> bucket_names() const;

  /// Makes the buckets of the first backward these, from bucket_names() of an
  /// earlier run on the same mesh, so that sums are added in the same order.
  /// Collective in effect: all ranks set the same, after the parameters have
  /// values and before the first backward.
  /// Throws: c10::ValueError for a name that is unknown or comes twice.
  void set_bucket_layout(const std::vector<std::vector<std::string>>& layout);

  /// Has `hook` reduce the buckets from the next backward on. Once only.
  /// Collective: all replicas with the same hook, which is tried on a small
  /// bucket unless it cannot be.
  /// Throws: c10::ValueError for a null or second hook, one that divides where
  /// reduce_op is kSum or a group has a divisor of its own, one whose result
  /// is not what it declares, and options that it cannot work with.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  /// What the hook needs to go on exactly after a restart, and the buckets that
  /// it is for: a part of a checkpoint. Its tensors' sizes change from step to
  /// step, so read it back with checkpoint::load_part(). Empty without a hook
  /// that keeps a state.
  /// Collective: all ranks of the model's mesh; blocks.
  dtensor::StateDict comm_hook_state_dict() const;
  /// Null if none is registered.
  std::shared_ptr<CommHook> comm_hook() const;
  /// Gives the registered hook such a state, and the first backward its
  /// buckets. On a mesh of another shape that is possible if all ranks kept the
  /// same, as those of post_localSGD_hook() do.
  /// Collective: as comm_hook_state_dict().
  /// Throws: c10::ValueError, before anything changes, if there is no hook, a
  /// backward has already made other buckets, or entries belong to the ranks of
  /// another mesh.
  void load_comm_hook_state_dict(const dtensor::StateDict& state);

  /// Has `hook` bring the replicas' buffers together, instead of a broadcast
  /// from the first.
  void register_buffer_comm_hook(
      BufferCommHook hook,
      BufferCommHookLocation location = BufferCommHookLocation::POST_FORWARD);
  /// Whether a training forward synchronises buffers now.
  bool will_sync_module_buffers() const;

  /// Steps an optimizer for each parameter once gradients are reduced, and
  /// drops the gradient. Not under no_sync(). `parameters`: all that are
  /// trained, unless given. May be called for others again.
  /// Throws: c10::ValueError for a parameter of others, or one that has such an
  /// optimizer already.
  std::shared_ptr<OptimizerInBackward> register_fused_optim(
      const OptimizerFactory& factory,
      std::optional<std::vector<at::Tensor>> parameters = std::nullopt);
  /// The same with optimizers made by apply_optimizer_in_backward() before.
  void register_fused_optim(std::shared_ptr<OptimizerInBackward> optimizers);

  /// As the option static_graph. Before the first backward.
  void set_static_graph();
  /// Listens no more to the parameters' gradients: nothing is reduced.
  void remove_autograd_hooks();
  /// Throws: c10::ValueError naming the parameters whose gradients are awaited
  /// if the last backward() did not end in a reduction.
  void check_reducer_finalized() const;

  /// Leaves it to finalize_backward() to wait for the reductions, so that other
  /// work may run meanwhile; .grad() is valid after it. Before a forward.
  void require_manual_backward_finalization(bool required);
  bool should_finalize_after_backward() const;
  /// Collective: all replicas, once after each backward() outside of no_sync().
  void finalize_backward();

  /// Replaces the replicas, e.g. after one was lost: the next backward makes
  /// buckets anew. What an error left behind is forgotten. Parameters are not
  /// compared or broadcast; parameter_groups and the comm hook's own groups
  /// must not be in use.
  /// Collective in effect: all ranks of `dp_mesh`.
  void update_process_group(const mesh::DeviceMesh& dp_mesh);

  /// Fails if parameters or buffers of the replicas differ, naming the first.
  /// Collective: all replicas; blocks.
  /// Throws: mesh::DisagreementError.
  void check_replicas() const;

  /// What DDP knows of itself; to_json() writes it.
  DDPLoggingData get_ddp_logging_data() const;
  /// Times are taken in the first 10 iterations and then in every `every`th.
  void set_ddp_runtime_logging_sample_rate(int64_t every);
  /// Which parameters got no gradient in the last backward on this rank, the
  /// modules that have them and when they last got one; "" if none.
  std::string describe_unused_parameters() const;

  /// Parameters and buffers on the mesh of all dims, replicated over the
  /// replicas', e.g. [R, S(0)] on dp=2 tp=2. They share the module's memory.
  /// `ignore` names what is left out.
  /// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
  dtensor::StateDict state_dict(const std::set<std::string>& ignore = {}) const;
  /// The same for an optimizer of the module's parameters; see
  /// dtensor/nn/optimizer_state.h. Of a ZeroRedundancyOptimizer its own.
  /// Collective: all ranks of the model's mesh, for that one.
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const;
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const;

 protected:
  DistributedDataParallelBase(
      std::shared_ptr<torch::nn::Module> module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase() override;

  /// `samples`: rows of the first tensor among forward()'s arguments.
  void before_forward(std::optional<int64_t> samples);
  void after_forward(const std::vector<at::Tensor>& outputs);

  /// An argument of forward() in the dtype that the module computes in.
  at::Tensor cast_input(const at::Tensor& input) const;
  std::vector<at::Tensor> cast_input(
      const std::vector<at::Tensor>& inputs) const;

  static std::optional<int64_t> samples_of() { return std::nullopt; }
  template <class First, class... Rest>
  static std::optional<int64_t> samples_of(
      const First& first,
      const Rest&... rest) {
    if constexpr (std::is_same_v<First, at::Tensor>) {
      return first.defined() && first.dim() > 0 ? first.size(0) : 1;
    } else if constexpr (std::is_same_v<First, std::vector<at::Tensor>>) {
      return first.empty() ? samples_of(rest...) : samples_of(first.front());
    } else {
      return samples_of(rest...);
    }
  }

 private:
  void leave_join() override;
  void abort_join() override;
  std::unique_ptr<State> state_;
};

/// Trains replicas of a module on different batches as one: gradients are
/// reduced over the ranks of a mesh dim while backward runs. Callable like the
/// module. Parameters may be plain tensors or DTensors on other mesh dims,
/// whose local parts are then reduced.
/// Collective: construction (see synchronize_parameters), forward if there are
/// buffers to broadcast, and every backward outside of no_sync().
/// Source: torch/nn/parallel/distributed.py.
template <class M>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// `dp_mesh` has one dim: the replicas. For a group that is no part of a
  /// mesh, DeviceMesh::from_group() makes one.
  /// Throws: c10::ValueError for a mesh of several dims, a module without
  /// trainable parameters or with an Embedding that has max_norm, or an
  /// impossible option; mesh::DisagreementError if
  /// the replicas' models differ.
  DistributedDataParallel(
      std::shared_ptr<M> module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(module, dp_mesh, options),
        module_(std::move(module)) {}

  DistributedDataParallel(
      const torch::nn::ModuleHolder<M>& module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), dp_mesh, options) {}

  /// The module's forward(), with the hooks that act on it. Where its output
  /// has its tensors says data_parallel/output_tensors.h. What it throws on
  /// some ranks alone, the others are told: see World::run_and_report_errors().
  template <class... Args>
  auto forward(Args&&... args) {
    return mesh().world().run_and_report_errors("the forward pass", [&] {
      before_forward(samples_of(args...));
      auto output = call_wrapped(module_, prepare(std::forward<Args>(args))...);
      after_forward(tensors_of(output));
      return output;
    });
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }

 private:
  template <class Arg>
  decltype(auto) prepare(Arg&& arg) const {
    using Plain = std::decay_t<Arg>;
    if constexpr (
        std::is_same_v<Plain, at::Tensor> ||
        std::is_same_v<Plain, std::vector<at::Tensor>>) {
      return cast_input(arg);
    } else {
      return std::forward<Arg>(arg);
    }
  }

  std::shared_ptr<M> module_;
};

} // namespace weft::ddp
