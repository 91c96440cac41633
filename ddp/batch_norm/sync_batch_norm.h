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

/// The group over which the SyncBatchNorm layers of a model exchange
/// statistics. It is separate from DDP's, so that its collectives need not be
/// ordered with those of gradient buckets. Ranks without inputs can shadow
/// them: see Note [Join].
class SyncBatchNormGroup {
 public:
  /// Creates the channel over `group`, which only it uses.
  explicit SyncBatchNormGroup(mesh::Communicator group);

  /// Sums `statistics` over the ranks in place; blocks.
  /// Collective: all ranks of the group that are not in shadow_pass().
  /// Throws: mesh::DisagreementError on all ranks if announced sums differ.
  void sum(const at::Tensor& statistics);

  /// Sets whether sum() announces its number of elements, dtype and device, so
  /// that shadow_pass() can take part. Must be called on all ranks that sum.
  void set_announcing(bool announces);
  /// Tells the shadows that forward or backward has ended. Does nothing unless
  /// sums are announced.
  /// Collective: all ranks of the group; those with inputs call it.
  void end_pass();
  /// Takes part in each sum() with zeros until the others call end_pass().
  /// Returns immediately if all ranks shadow.
  /// Collective: all ranks of the group; those without inputs call it.
  void shadow_pass();

  /// The group over which statistics are summed.
  const mesh::Communicator& group() const { return group_; }

 private:
  mesh::Communicator group_;
  bool announces_ = false;
};

/// Creates a group over a 1-D mesh of replicas.
/// Collective: all ranks of the mesh; blocks.
std::shared_ptr<SyncBatchNormGroup> make_sync_batch_norm_group(
    const mesh::DeviceMesh& dp_mesh);

/// Batch normalization with mean and variance over the inputs of all ranks in
/// training. Ranks may have batches of different sizes, including empty ones.
/// In eval mode it is BatchNorm without communication. Statistics of Half and
/// BFloat16 are in float. Second derivatives are not supported. Gradients of
/// weight and bias are local; DistributedDataParallel reduces them. See Note
/// [Synchronised statistics].
/// Source: torch/nn/modules/batchnorm.py, SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// Layers of one model share one group. So does a copy of the module.
  SyncBatchNormImpl(
      const torch::nn::BatchNormOptions& options,
      std::shared_ptr<SyncBatchNormGroup> channel);

  /// Replaces a BatchNorm1d, 2d or 3d: takes over its options, its mode, and
  /// the same parameters and buffers.
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

  /// Creates new parameters and statistics with their initial values.
  void reset() override;
  /// Sets the running mean to 0, the running variance to 1 and the count to 0.
  void reset_running_stats();
  /// Resets the statistics, and sets the weight to 1 and the bias to 0.
  void reset_parameters();

  /// Shapes: [N, C] or [N, C, ...], N may be 0; plain, or a DTensor, which is
  /// redistributed to Replicate on its mesh. Returns the same shape.
  /// Collective: all ranks of the group in training mode, and in backward if
  /// `input` requires a gradient.
  /// Throws: c10::ValueError for another shape, and on all ranks if there is
  /// only one value per channel.
  at::Tensor forward(const at::Tensor& input);

  /// Writes "weft::ddp::SyncBatchNorm(...)" with the options.
  void pretty_print(std::ostream& stream) const override;

  /// The channel over which statistics are summed.
  const std::shared_ptr<SyncBatchNormGroup>& channel() const {
    return channel_;
  }

  /// The options, as of torch::nn::BatchNorm.
  torch::nn::BatchNormOptions options;
  /// The factors by channel. Undefined if `affine` is false.
  at::Tensor weight;
  /// The summands by channel. Undefined if `affine` is false.
  at::Tensor bias;
  /// The running mean by channel. Undefined if `track_running_stats` is false.
  at::Tensor running_mean;
  /// The running variance by channel. Undefined if `track_running_stats` is
  /// false.
  at::Tensor running_var;
  /// The number of batches in the running statistics, an integer. Undefined if
  /// `track_running_stats` is false.
  at::Tensor num_batches_tracked;

 private:
  void register_own();
  void check_input(const at::Tensor& input) const;
  /// Counts a batch and returns the weight of its statistics in the running
  /// ones.
  double next_average_factor();

  std::shared_ptr<SyncBatchNormGroup> channel_;
};

TORCH_MODULE(SyncBatchNorm);

/// Replaces the BatchNorm1d, 2d and 3d layers in all Sequentials of a module by
/// SyncBatchNorm layers with the same parameters and buffers, and returns their
/// common group, or null if there are none. Must be called before the module is
/// wrapped.
/// Collective: all ranks of the 1-D mesh `dp_mesh`; blocks.
/// Throws: c10::ValueError, without changing the module, if it has such layers
/// elsewhere: a C++ module calls its members by their static type, so such
/// layers must be declared as SyncBatchNorm.
/// Source: torch/nn/modules/batchnorm.py, SyncBatchNorm.convert_sync_batchnorm.
std::shared_ptr<SyncBatchNormGroup> convert_sync_batchnorm(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp_mesh);

/// Returns the distinct groups of the SyncBatchNorm layers of a module, in
/// module order.
std::vector<std::shared_ptr<SyncBatchNormGroup>> sync_batch_norm_groups(
    const torch::nn::Module& module);

} // namespace weft::ddp
