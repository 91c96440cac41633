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

/// The moment at which a buffer hook runs.
enum class BufferCommHookLocation { PRE_FORWARD, POST_FORWARD };

/// Makes the buffers of all replicas equal, in place.
/// Collective: all replicas.
using BufferCommHook =
    std::function<void(const std::vector<data_parallel::NamedTensor>&)>;

/// The part of DistributedDataParallel that does not depend on the module's
/// type.
class DistributedDataParallelBase : public data_parallel::Joinable {
 public:
  struct State;

  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) =
      delete;

  /// Accumulates gradients without communication during the guard's lifetime.
  data_parallel::NoSyncGuard no_sync();

  /// Runs `body`, this rank's loop over its inputs, if replicas may have
  /// different numbers of inputs: a Join of only this object. Gradients are
  /// divided by the number of replicas, or, without
  /// divide_by_initial_world_size, by the number of those with inputs.
  /// Collective: all ranks of the model's mesh.
  void join(
      const std::function<void()>& body,
      bool divide_by_initial_world_size = true,
      bool enable = true,
      bool throw_on_early_termination = false);
  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;
  bool is_in_join_iteration() const override;
  /// Copies the state that `optimizer` has of the module's parameters from a
  /// replica that trained last to all replicas, for JoinableOptimizer.
  /// Collective: all replicas, in the post hooks of a Join of this object.
  void sync_joinable_optimizer(torch::optim::Optimizer& optimizer);

  /// Compares the replicas, copies the first one's values to all, and registers
  /// gradient hooks. Runs at construction, or at the first forward for a model
  /// with deferred parameters, unless called before.
  /// Collective: all ranks of the mesh, the first time; blocks.
  /// Throws: c10::ValueError naming a parameter without values;
  /// mesh::DisagreementError if the replicas differ.
  void synchronize_parameters();

  /// The mesh of the replicas.
  const mesh::DeviceMesh& mesh() const;

  /// Returns the names of the parameters of each bucket in the order of
  /// reduction: reverse registration order until the first synchronized
  /// backward, then the order of that backward.
  std::vector<std::vector<std::string>> bucket_names() const;

  /// Sets the buckets of the first backward to bucket_names() of an earlier run
  /// on the same mesh, so that sums are added in the same order. All ranks must
  /// set the same, after the parameters have values and before the first
  /// backward.
  /// Throws: c10::ValueError for a name that is unknown or repeated.
  void set_bucket_layout(const std::vector<std::vector<std::string>>& layout);

  /// Registers a hook that reduces the buckets from the next backward on. Can
  /// be called once.
  /// Collective: all replicas with the same hook; the hook is tested on a small
  /// bucket if its can_be_tried() is true.
  /// Throws: c10::ValueError for a null or second hook, for a hook that divides
  /// if reduce_op is kSum or a group has its own divisor, for a hook whose
  /// result does not match its declaration, and for options that it does not
  /// support.
  void register_comm_hook(std::shared_ptr<data_parallel::CommHook> hook);
  /// Returns the state that the hook needs for identical results after a
  /// restart, and its buckets, as a part of a checkpoint. The sizes of its
  /// tensors change between steps, so load it with checkpoint::load_part().
  /// Empty if the hook has no state.
  /// Collective: all ranks of the model's mesh; blocks.
  dtensor::StateDict comm_hook_state_dict() const;
  /// Returns the hook, or null.
  std::shared_ptr<data_parallel::CommHook> comm_hook() const;
  /// Loads the state of the registered hook and the buckets of the first
  /// backward. On a mesh of another shape this requires equal state on all
  /// ranks, as that of post_localSGD_hook().
  /// Collective: like comm_hook_state_dict().
  /// Throws: c10::ValueError, before anything changes, if there is no hook, a
  /// backward has already created other buckets, or entries belong to ranks of
  /// another mesh.
  void load_comm_hook_state_dict(const dtensor::StateDict& state);

  /// Registers a hook that synchronizes the replicas' buffers in place of a
  /// broadcast from the first replica.
  void register_buffer_comm_hook(
      BufferCommHook hook,
      BufferCommHookLocation location = BufferCommHookLocation::POST_FORWARD);
  /// Returns true if a training forward would synchronize buffers now.
  bool will_sync_module_buffers() const;

  /// Steps an optimizer for each parameter as soon as its gradient is reduced,
  /// and frees the gradient. Does not run under no_sync(). `parameters`
  /// defaults to all trained parameters. May be called again for other
  /// parameters.
  /// Throws: c10::ValueError for a parameter that this module does not train or
  /// that already has such an optimizer.
  std::shared_ptr<OptimizerInBackward> register_fused_optim(
      const OptimizerFactory& factory,
      std::optional<std::vector<at::Tensor>> parameters = std::nullopt);
  /// Like register_fused_optim(factory), with optimizers from
  /// apply_optimizer_in_backward().
  void register_fused_optim(std::shared_ptr<OptimizerInBackward> optimizers);

  /// Like the option static_graph. Must be called before the first backward.
  void set_static_graph();
  /// Removes the hooks on the parameters' gradients: nothing is reduced
  /// afterwards.
  void remove_autograd_hooks();
  /// Throws: c10::ValueError naming the parameters with missing gradients, if
  /// the last backward() did not end in a reduction.
  void check_reducer_finalized() const;

  /// Makes finalize_backward() wait for the reductions in place of backward(),
  /// so that other work can overlap; .grad() is valid after it. Must be called
  /// before a forward.
  void require_manual_backward_finalization(bool required);
  /// Returns true if finalize_backward() must be called after backward(). False
  /// for a model that has nothing to reduce.
  bool should_finalize_after_backward() const;
  /// Waits for the reductions.
  /// Collective: all replicas, once after each backward() outside no_sync().
  void finalize_backward();

  /// Takes part in a reduction without a forward and backward, with what was
  /// accumulated under no_sync(), else with zeros; an earlier .grad() does not
  /// count. .grad() has the result afterwards, as on the replicas with inputs;
  /// finalize_backward() is not called for it. `meanwhile` runs while those
  /// compute. See Join where it is not known which replicas have inputs.
  /// Collective: the replicas, in place of a backward outside no_sync(), on all
  /// ranks of the model's mesh that belong to this replica.
  /// Throws: c10::ValueError before the first backward, which tells the order
  /// of the gradients; in a Join; under no_sync(); and if a forward of the
  /// others communicates, because of find_unused_parameters, buffers or
  /// SyncBatchNorm.
  void reduce_without_inputs(const std::function<void()>& meanwhile = {});

  /// Replaces the replicas, e.g. after one was lost: the next backward rebuilds
  /// the buckets. Clears the state of an earlier error. Does not compare or
  /// broadcast parameters. Not supported with parameter_groups or with groups
  /// of the comm hook. All ranks of `dp_mesh` must call it.
  void update_process_group(const mesh::DeviceMesh& dp_mesh);

  /// Compares the parameters and buffers of the replicas.
  /// Collective: all replicas; blocks.
  /// Throws: mesh::DisagreementError naming the first difference.
  void check_replicas() const;

  /// Returns statistics. to_json() formats them.
  DDPLoggingData get_ddp_logging_data() const;
  /// Sets the sampling of timings: the first 10 iterations and then every
  /// `every`th.
  void set_ddp_runtime_logging_sample_rate(int64_t every);
  /// Describes the parameters without a gradient in the last backward on this
  /// rank: their modules, and when they last got one. "" if there are none.
  std::string describe_unused_parameters() const;

  /// Returns parameters and buffers on the mesh of all dims, replicated over
  /// the replicas, e.g. [R, S(0)] on dp=2 tp=2. They share the module's memory.
  /// The names in `ignore` are left out.
  /// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
  dtensor::StateDict state_dict(const std::set<std::string>& ignore = {}) const;
  /// Returns or loads the state of an optimizer of the module's parameters in
  /// the same form; see dtensor/nn/optimizer_state.h. A ZeroRedundancyOptimizer
  /// uses its own methods.
  /// Collective: all ranks of the model's mesh, for a ZeroRedundancyOptimizer.
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const;
  /// Loads what optimizer_state_dict() returned.
  /// Collective: all ranks of the model's mesh, for a ZeroRedundancyOptimizer.
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const;

 protected:
  /// Prepares the replicas; see DistributedDataParallel.
  DistributedDataParallelBase(
      std::shared_ptr<torch::nn::Module> module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase() override;

  /// `samples` is the number of rows of the first tensor argument of forward().
  void before_forward(std::optional<int64_t> samples);
  /// Prepares the reductions of the backward pass from `outputs`.
  void after_forward(const std::vector<at::Tensor>& outputs);

  /// Returns the dtype to which arguments of forward() are cast, if any.
  std::optional<c10::ScalarType> input_dtype() const;

  /// Returns the rows of the first tensor among the arguments, if there is one.
  static std::optional<int64_t> samples_of() { return std::nullopt; }
  /// Returns the rows of the first tensor among the arguments, if there is one.
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

/// Trains replicas of a module on different batches as one model: gradients are
/// reduced over the ranks of a mesh dim during backward. Callable like the
/// module. Parameters may be plain tensors, or DTensors on other mesh dims,
/// whose local tensors are then reduced.
/// Collective: construction (see synchronize_parameters()), forward if buffers
/// must be broadcast, and every backward outside no_sync().
/// Source: torch/nn/parallel/distributed.py.
template <class M>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// `dp_mesh` is the 1-D mesh of the replicas. DeviceMesh::from_group()
  /// creates one from a group.
  /// Throws: c10::ValueError for a mesh of several dims, a module without
  /// trainable parameters or with an Embedding that has max_norm, or an invalid
  /// option; mesh::DisagreementError if the replicas' models differ.
  DistributedDataParallel(
      std::shared_ptr<M> module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(module, dp_mesh, options),
        module_(std::move(module)) {}

  /// Like the constructor above, with a module holder.
  DistributedDataParallel(
      const torch::nn::ModuleHolder<M>& module,
      const mesh::DeviceMesh& dp_mesh,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), dp_mesh, options) {}

  /// Calls the module's forward() with its hooks.
  /// data_parallel/output_tensors.h describes how tensors are found in its
  /// output. An exception on some ranks is reported to the others: see
  /// World::run_and_report_errors().
  template <class... Args>
  auto forward(Args&&... args) {
    return mesh().world().run_and_report_errors("the forward pass", [&] {
      before_forward(samples_of(args...));
      auto output = data_parallel::call_wrapped(
          module_,
          data_parallel::cast_argument(
              std::forward<Args>(args), input_dtype())...);
      after_forward(data_parallel::tensors_of(output));
      return output;
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

} // namespace weft::ddp
