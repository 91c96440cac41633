#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include "ddp/options.h"
#include "dtensor/module_call.h"
#include "dtensor/optimizer_state.h"
#include "dtensor/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// While one lives, backward passes of its DistributedDataParallel add to each
/// replica's own gradients; the next one without it reduces the sum. What
/// counts is when backward() runs.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(std::shared_ptr<std::atomic<int>> paused)
      : paused_(std::move(paused)) {
    ++*paused_;
  }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;
  ~NoSyncGuard() { --*paused_; }

 private:
  std::shared_ptr<std::atomic<int>> paused_;
};

/// What DistributedDataParallel does whatever the module's type.
class DistributedDataParallelBase {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) =
      delete;

  /// Accumulates gradients without communication while the guard lives.
  NoSyncGuard no_sync();

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

  /// Parameters and buffers on the mesh of all dims, replicated over the
  /// replicas', e.g. [R, S(0)] on dp=2 tp=2. They share the module's memory.
  /// `ignore` names what is left out.
  /// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
  dtensor::StateDict state_dict(const std::set<std::string>& ignore = {}) const;
  /// The same for an optimizer of the module's parameters; see
  /// dtensor/optimizer_state.h.
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
  ~DistributedDataParallelBase();

  void before_forward();
  void after_forward(const at::Tensor& output);
  void after_forward(const std::vector<at::Tensor>& outputs);
  template <class... T>
  void after_forward(const std::tuple<T...>& outputs) {
    std::apply(
        [this](const auto&... each) { (after_forward(each), ...); }, outputs);
  }
  template <class T>
  void after_forward(const T&) {}

 private:
  struct State;
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
  /// `dp_mesh` has one dim: the replicas.
  /// Throws: c10::ValueError for a mesh of several dims, a module without
  /// trainable parameters or an impossible option; mesh::DisagreementError if
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

  /// The module's forward(), with the hooks that act on it.
  template <class... Args>
  auto forward(Args&&... args) {
    before_forward();
    auto output = call_module(std::forward<Args>(args)...);
    after_forward(output);
    return output;
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }

 private:
  template <class First, class... Rest>
  auto call_module(First&& first, Rest&&... rest) {
    using Result = decltype(module_->forward(
        std::forward<First>(first), std::forward<Rest>(rest)...));
    if constexpr (
        std::is_convertible_v<First, const at::Tensor&> &&
        std::is_same_v<Result, at::Tensor>) {
      return dtensor::call(module_, first, std::forward<Rest>(rest)...);
    } else {
      return module_->forward(
          std::forward<First>(first), std::forward<Rest>(rest)...);
    }
  }

  std::shared_ptr<M> module_;
};

} // namespace weft::ddp
