#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "mesh/communicator/communicator.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The group over which the SyncBatchNorm layers of one model exchange
/// statistics: one of their own, so that they need not be in order with
/// gradient buckets. Ranks without inputs can shadow them: see Note [Join].
class SyncBatchNormGroup {
 public:
  explicit SyncBatchNormGroup(mesh::Communicator group);

  /// Sums `statistics` over the ranks, in place; blocks.
  /// Collective: all ranks of the group that are not in shadow_pass().
  /// Throws: mesh::DisagreementError on all ranks if announced sums differ.
  void sum(const at::Tensor& statistics);

  /// Whether sum() is announced, with its number of elements, dtype and device,
  /// so that shadow_pass() can take part. On all ranks that sum alike.
  void set_announcing(bool announces);
  /// Tells the shadows that forward, or backward, has ended here. Does nothing
  /// unless sums are announced.
  /// Collective: all ranks of the group, those that sum here.
  void end_pass();
  /// Takes part, with zeros, in each sum() until the others call end_pass();
  /// ends at once if all ranks shadow.
  /// Collective: all ranks of the group, those that do not sum here.
  void shadow_pass();

  const mesh::Communicator& group() const { return group_; }

 private:
  mesh::Communicator group_;
  bool announces_ = false;
};

/// A channel over the replicas' mesh, of one dim.
/// Collective: all ranks of the mesh; blocks.
std::shared_ptr<SyncBatchNormGroup> make_sync_batch_norm_group(
    const mesh::DeviceMesh& dp_mesh);

/// Batch normalization whose mean and variance, while it trains, are those of
/// all ranks' inputs together; ranks may have batches of different sizes, also
/// none. In eval mode it is BatchNorm, without communication. Statistics of
/// halves and bfloat16 are in float. Second derivatives do not exist.
/// Gradients of weight and bias are each rank's own, for
/// DistributedDataParallel to reduce. See Note [Synchronised statistics].
/// Source: torch/nn/modules/batchnorm.py, SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// Layers of one model share one channel. A copy of the module does too.
  SyncBatchNormImpl(
      const torch::nn::BatchNormOptions& options,
      std::shared_ptr<SyncBatchNormGroup> channel);

  /// Takes the place of a BatchNorm1d, 2d or 3d: same options and mode, the
  /// very same parameters and buffers.
  template <size_t D, class Derived>
  SyncBatchNormImpl(
      const torch::nn::BatchNormImplBase<D, Derived>& other,
      std::shared_ptr<SyncBatchNormGroup> channel)
      : options(other.options),
        weight(other.weight),
        bias(other.bias),
        running_mean(other.running_mean),
        running_var(other.running_var),
        num_batches_tracked(other.num_batches_tracked),
        channel_(std::move(channel)) {
    register_own();
    train(other.is_training());
  }

  void reset() override;
  void reset_running_stats();
  void reset_parameters();

  /// Shapes: [N, C] or [N, C, ...], N may be 0; plain or a DTensor, which is
  /// brought to Replicate on its mesh. Returns the same.
  /// Collective: in training mode all ranks of the channel, and backward where
  /// `input` requires a gradient.
  /// Throws: c10::ValueError for another shape, and on all ranks if a channel
  /// has a single value in all of them.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

  const std::shared_ptr<SyncBatchNormGroup>& channel() const {
    return channel_;
  }

  torch::nn::BatchNormOptions options;
  /// Undefined without `affine`.
  at::Tensor weight, bias;
  /// Undefined without `track_running_stats`.
  at::Tensor running_mean, running_var, num_batches_tracked;

 private:
  void register_own();
  void check_input(const at::Tensor& input) const;
  /// Counts a batch; returns how much of its statistics the running ones take.
  double next_average_factor();

  std::shared_ptr<SyncBatchNormGroup> channel_;
};

TORCH_MODULE(SyncBatchNorm);

/// Replaces the BatchNorm1d, 2d and 3d layers in all Sequentials of a module by
/// SyncBatchNorm layers with the same parameters and buffers, on one channel,
/// which is returned; null if there are none. Before the module is wrapped.
/// Collective: all ranks of `dp_mesh` (one dim); blocks.
/// Throws: c10::ValueError, leaving the module as it was, if it has such layers
/// elsewhere: a C++ module calls its members by their own type, whatever is
/// registered under their name. Declare those as SyncBatchNorm.
/// Source: torch/nn/modules/batchnorm.py, SyncBatchNorm.convert_sync_batchnorm.
std::shared_ptr<SyncBatchNormGroup> convert_sync_batchnorm(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp_mesh);

/// The channels of the SyncBatchNorm layers in a module, each once, in module
/// order.
std::vector<std::shared_ptr<SyncBatchNormGroup>> sync_batch_norm_groups(
    const torch::nn::Module& module);

} // namespace weft::ddp
