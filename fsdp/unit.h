#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "fsdp/options.h"
#include "fsdp/sharded_parameter.h"
#include "mesh/communicator/communicator.h"

namespace weft::fsdp {

/// Parameters that are gathered together and whose gradients are reduced
/// together, in one message each. Schedule decides when.
/// Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
class Unit {
 public:
  /// `parameters` are sharded and have values. `group` is that of the mesh dim
  /// that shards, `replicas` that of the ranks with the same shards, if there
  /// is one.
  Unit(
      std::string name,
      std::vector<ShardedParameter> parameters,
      const FullyShardOptions& options,
      bool reshards_after_forward,
      mesh::Communicator group,
      std::optional<mesh::Communicator> replicas);

  /// The module's fully qualified name. "the model" is the outermost one.
  const std::string& name() const { return name_; }
  const std::vector<ShardedParameter>& parameters() const {
    return parameters_;
  }
  const MixedPrecisionPolicy& mixed_precision() const {
    return options_.mixed_precision;
  }
  int64_t unsharded_bytes() const;
  bool is_unsharded() const { return is_unsharded_; }
  bool reshards_after_forward() const { return reshards_after_forward_; }

  /// Sets the ranks from which backward gathers. Each of `group` keeps the rows
  /// of as many ranks of the unit as its share. See keep_for_backward().
  void set_reshard_group(mesh::Communicator group);
  /// Sets whether the next unshard() keeps this rank's part for that.
  void set_keeps_for_backward(bool keeps) { keeps_for_backward_ = keeps; }
  /// Frees that part. Later gathers use all ranks again.
  void drop_kept(UnitMemory& memory);

  /// Returns true if the parameters are gathered or in flight.
  bool is_gathered_soon() const { return is_unsharded_ || is_gathering_; }
  /// Starts to gather the parameters, unless is_gathered_soon().
  /// Collective: all ranks of the group.
  void start_unshard(UnitMemory& memory);
  /// Waits for the parameters.
  /// Collective: like start_unshard(), if it was not called.
  void unshard(UnitMemory& memory);
  /// Gathers the parameters in the dtype of their shards, even with a policy
  /// for computation in another one. Collective: all ranks of the group;
  /// blocks.
  void unshard_in_full_precision(UnitMemory& memory);
  /// Returns true if the parameters are unsharded for computation, in the
  /// policy's param_dtype if there is one.
  bool is_ready_to_compute() const {
    return is_unsharded_ && !is_in_full_precision_;
  }
  /// Copies writes to unsharded parameters to the shards.
  void write_back();
  /// Frees the other ranks' rows, and discards those in flight.
  void reshard(UnitMemory& memory);

  /// Returns true if a backward pass will deliver the gradient of a parameter.
  bool listens_to(size_t index) const { return states_[index].is_listened_to; }
  void set_listens_to(size_t index) { states_[index].is_listened_to = true; }

  /// Begins a backward pass: no gradient has arrived.
  void begin_backward();
  /// Returns true if a parameter is trained now.
  bool is_trained() const;
  /// Returns true if a parameter is frozen now.
  bool has_frozen() const;
  /// Returns true if the gradients of all trained parameters have arrived.
  bool awaits_nothing() const { return awaited_ == 0; }
  /// Counts a gradient of parameter `index`. Returns true if it was the last
  /// missing one.
  bool count_gradient(size_t index);
  /// Moves the gradient in .grad() of parameter `index` to the message.
  /// Throws: c10::ValueError for a sparse gradient and for one with a graph.
  void take_gradient(size_t index, UnitMemory& memory);
  /// Casts the gradient in .grad() of parameter `index`, to which the next
  /// passes add, to the dtype of reduction.
  void cast_own_gradient(size_t index);
  /// Moves a sharded gradient of earlier passes out of .grad(), so that this
  /// pass starts without one.
  void set_gradient_aside(size_t index);
  /// Returns true if start_reduce() was called in this pass.
  bool is_reduced() const { return is_reduced_; }
  /// Returns true if all gradients of this pass have arrived.
  bool is_done() const {
    return is_reduced_ || (awaited_ == 0 && is_trained());
  }
  bool has_gradients() const;
  /// Sums over the replicas by `hook`, which must be without state. `bucket` is
  /// the GradBucket::index of the unit's first message.
  void set_comm_hook(
      std::shared_ptr<data_parallel::CommHook> hook,
      size_t bucket);
  /// Returns the number of messages in which gradients are reduced.
  size_t message_count() const { return parts_.size(); }
  /// Sets the number of ranks by which an average of gradients (kAvg) is
  /// divided. 0 means all ranks of the group and its replicas.
  void set_contributors(int64_t ranks) { contributors_ = ranks; }
  /// Starts to reduce the gradients; missing ones count as zeros.
  /// Collective: all ranks of the group.
  void start_reduce(UnitMemory& memory);
  /// Waits for the sums over the group. Adds the sums of earlier passes that
  /// were not yet reduced over the replicas, and starts the reduction over the
  /// replicas. Returns false, and starts nothing, if there are no other
  /// replicas.
  /// Collective: all replicas, which must call it for the units in the same
  /// order.
  bool start_reduce_over_replicas(UnitMemory& memory);
  /// Waits for the sums over the group and leaves them unreduced over the
  /// replicas, in place of start_reduce_over_replicas().
  void skip_reduce_over_replicas(UnitMemory& memory);
  /// Waits for the sums and adds those of earlier passes. Must be called after
  /// start_reduce_over_replicas() or skip_reduce_over_replicas().
  void finish_reduce(UnitMemory& memory);
  /// Sets the parameters' sharded gradients. A parameter for which no rank had
  /// a gradient in this pass keeps its previous one.
  void set_gradients();
  /// Keeps this rank's gradients after a pass that failed or that accumulates
  /// locally.
  void keep_own_gradients(UnitMemory& memory);

 private:
  /// The parameters of one dtype.
  struct Part {
    /// The dtypes of shards, of the unsharded parameters, and of the gradients
    /// when they are reduced.
    at::ScalarType dtype = at::kFloat;
    at::ScalarType unsharded_dtype = at::kFloat;
    at::ScalarType gradient_dtype = at::kFloat;
    std::vector<size_t> parameters;
    /// The offset of each parameter's shard in `shards`, in elements.
    std::vector<int64_t> offsets;
    int64_t numel = 0;
    /// This rank's shards; those of the parameters are views of it.
    at::Tensor shards;
    /// This rank's shards in unsharded_dtype while they are sent, if that
    /// differs from dtype.
    at::Tensor cast_shards;
    /// [ranks, numel], while the other ranks' rows arrive.
    at::Tensor gathered;
    /// [ranks / size of reshard_group_, numel]: the rows of `gathered` that
    /// this rank keeps until backward.
    at::Tensor kept;
    /// The parameters whose gradients are sent, and the number of elements of a
    /// rank's part of them.
    std::vector<size_t> gradient_slots;
    int64_t gradient_numel = 0;
    /// [ranks, gradient_numel + gradient_slots]: gradients and, for each of
    /// those parameters, whether this rank has one.
    at::Tensor gradients;
    /// [gradient_numel + gradient_slots]: this rank's sums while in flight, and
    /// their final memory, of dtype.
    at::Tensor reduced;
    at::Tensor sums;
    /// True if `sums` has the sums of earlier passes.
    bool adds_to_earlier = false;
    /// True if `reduced` is memory of a message and not `sums`.
    bool is_reduced_in_message = false;
    /// True if `reduced` is summed over the replicas, or there is only one.
    bool is_reduced_over_replicas = true;
    mesh::Work gather;
    mesh::Work reduction;
    /// The sums over the replicas while a comm hook computes them. `reduction`
    /// is then that of the flags.
    std::optional<data_parallel::BucketFuture> by_hook;
  };
  struct State {
    size_t part = 0;
    /// The index in the part, and among those whose gradients are sent.
    size_t slot = 0;
    int64_t gradient_slot = -1;
    int64_t gradient_offset = 0;
    /// A gradient that start_reduce() still has to sum over a mesh dim of the
    /// parameter, such as the tensor-parallel one.
    at::Tensor pending;
    bool is_listened_to = false;
    /// True if a gradient has arrived, and if one is in the message.
    bool is_counted = false;
    bool has_gradient = false;
    /// The sharded gradient that was moved out of .grad(), where autograd
    /// stores the unsharded gradient of this pass. finish_reduce() adds the sum
    /// of this pass to it, and set_gradients() moves it back to .grad().
    at::Tensor aside;
    /// True if the message for the replicas includes it.
    bool is_aside_sent = false;
  };

  at::Tensor parts_of(const at::Tensor& message, size_t index) const;
  at::Tensor gradient_parts_of(const at::Tensor& message, size_t index) const;
  void start_gather(UnitMemory& memory, bool in_full_precision);
  void finish_unshard(UnitMemory& memory);
  void lay_out_gradients(Part& part);
  void allocate_gradients(Part& part, UnitMemory& memory);
  void write_gradient(size_t index, const at::Tensor& local);
  void sum_pending_gradients(const Part& part);
  at::Tensor place_for_sums(Part& part, UnitMemory& memory);
  std::vector<bool> reduced_flags(const Part& part) const;
  bool has_other_replicas() const { return replicas_ && replicas_->size() > 1; }
  void finish_reduce_scatter(Part& part, UnitMemory& memory);
  void add_unreduced(Part& part);
  void start_comm_hook(Part& part);
  void finish_comm_hook(Part& part);
  void add_sum(Part& part, size_t index);
  void give_reduced(Part& part, UnitMemory& memory);
  void finish_gather(UnitMemory& memory);
  void keep_part(Part& part, UnitMemory& memory);
  void check_gradient(size_t index, const at::Tensor& gradient) const;
  double divisor() const;

  std::string name_;
  std::vector<ShardedParameter> parameters_;
  std::vector<State> states_;
  std::vector<Part> parts_;
  FullyShardOptions options_;
  bool reshards_after_forward_;
  mesh::Communicator group_;
  std::optional<mesh::Communicator> replicas_;
  std::optional<mesh::Communicator> reshard_group_;
  bool keeps_for_backward_ = false;
  /// True if the parameters are gathered from what the ranks of reshard_group_
  /// kept.
  bool gathers_kept_ = false;
  std::shared_ptr<data_parallel::CommHook> comm_hook_;
  size_t first_bucket_ = 0;
  bool is_unsharded_ = false;
  bool is_gathering_ = false;
  /// True if the gathered or unsharded parameters have the shards' dtype.
  bool is_in_full_precision_ = false;
  bool is_reduced_ = false;
  int64_t contributors_ = 0;
  size_t awaited_ = 0;
};

} // namespace weft::fsdp
