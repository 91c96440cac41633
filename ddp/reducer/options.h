#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// Dtypes to compute, reduce and keep buffers in; one that is not given stays
/// as it is. Parameters that are not of floating point, and those that DDP
/// ignores, are left alone. Of float16, small gradients become 0 unless the
/// loss is scaled, which is up to the caller; bfloat16 needs no scaling.
/// Source: torch/nn/parallel/distributed.py, _MixedPrecision.
struct MixedPrecision {
  /// Of the parameters while forward and backward run.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// Of the buckets that are reduced; if not given, param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  /// Of the buffers, from the first forward on.
  std::optional<c10::ScalarType> buffer_dtype = std::nullopt;
  /// After backward .grad() has reduce_dtype instead of the parameter's own.
  bool keep_low_precision_grads = false;
  /// Floating point arguments of forward() become param_dtype.
  bool cast_forward_inputs = true;
  /// Parameters of libtorch's normalization modules stay in full precision.
  bool norms_in_full_precision = false;
  /// Names or patterns (see ParameterGroup) of more that stay so.
  std::vector<std::string> full_precision = {};
};

/// Parameters that are reduced over other ranks than the rest, e.g. experts
/// that not every replica has.
struct ParameterGroup {
  /// Fully qualified names, or patterns with "*" and "?" (also over dots), e.g.
  /// "layers.*.experts.*".
  std::vector<std::string> parameters;
  /// One dim, some or all of the ranks of the replicas' mesh.
  mesh::DeviceMesh mesh;
  /// By what the sum of the gradients is divided; if not given, by the size of
  /// `mesh`.
  std::optional<double> divide_by = std::nullopt;
};

/// What becomes of the gradients of a bucket.
enum class BucketMode {
  /// Copied one behind the other and reduced as one tensor.
  kConcatenated,
  /// Reduced where they are, in one coalesced collective.
  kCoalesced,
  /// Each by itself, as soon as it is accumulated.
  kPerParameter,
};

/// The options of PyTorch's DistributedDataParallel by its names, then Weft's.
/// docs/ddp.md has them in a table.
struct DistributedDataParallelOptions {
  /// How large a bucket may grow, in MiB. If not given: 25, with a first bucket
  /// of 1, so that communication starts early.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// The older name of forward_sync_buffers; at most one is given.
  std::optional<bool> broadcast_buffers = std::nullopt;
  /// Compare the replicas' parameters and buffers, and start from the first
  /// one's values. Without, that is up to the caller.
  bool init_sync = true;
  /// After backward, .grad() of a parameter is a view of a bucket; otherwise a
  /// tensor of its own, at the price of a copy and its memory. The next
  /// backward pass writes to the same memory: clone a gradient that is to be
  /// kept beyond zero_grad(). PyTorch's default is false.
  bool gradient_as_bucket_view = true;
  /// kAvg, or kSum for a loss that is already divided by the global count.
  /// With kSum, gradients must be zeroed between synchronised backward passes.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
  /// Before a training forward buffers (batch norm's running statistics) become
  /// those of the first replica, unless the training forward before it was
  /// under no_sync(): once for all accumulated ones. If not given: true.
  std::optional<bool> forward_sync_buffers = std::nullopt;
  /// A cap for each of the first buckets, in MiB; bucket_cap_mb for those after
  /// them.
  std::vector<double> bucket_cap_mb_list = {};
  /// Some parameters get no gradient, on some or all replicas, others in each
  /// step: the graph is searched for them after forward. Where no replica has
  /// a gradient, .grad() stays as it was.
  bool find_unused_parameters = false;
  /// The graph of the first step is that of every step: parameters may then be
  /// unused or used several times (re-entrant checkpointing) without a search.
  bool static_graph = false;
  /// Buckets of which no replica has a gradient are not reduced.
  bool skip_all_reduce_unused_params = false;
  /// Names of parameters that share one more bucket, reduced when the gradient
  /// of `param_to_hook_all_reduce` is ready.
  std::vector<std::string> delay_all_reduce_named_params = {};
  std::string param_to_hook_all_reduce = {};
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
  /// Gradients are copied into a bucket, and out of it, all at once.
  bool batched_grad_copy = false;
  /// A bucket takes memory when its first gradient is ready and returns it
  /// after backward, unless gradients are views of it.
  bool lazy_bucket_allocation = false;
  /// Names of parameters and buffers that are neither compared, broadcast,
  /// reduced nor cast.
  std::set<std::string> params_and_buffers_to_ignore = {};

  // Beyond PyTorch's.

  BucketMode bucket_mode = BucketMode::kConcatenated;
  /// The first group that names a parameter has it.
  std::vector<ParameterGroup> parameter_groups = {};
  /// Choose the caps from the times at which gradients became ready in the
  /// first backward and from what a reduction costs, both measured on the first
  /// rank. bucket_names() has the outcome.
  bool auto_bucketing = false;
  /// Fail on every rank if a gradient to be reduced is not finite, naming the
  /// parameter and the ranks. Costs a pass over the buckets.
  /// Source: Megatron-LM, DistributedDataParallelConfig.
  bool check_for_nan_in_grad = false;
};

/// forward_sync_buffers, by whichever name it was given.
bool syncs_buffers_in_forward(const DistributedDataParallelOptions& options);

/// The options that all replicas must set alike, a line each, for messages.
std::vector<std::string> describe_options(
    const DistributedDataParallelOptions& options);

} // namespace weft::ddp
