#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The dtypes of computation, reduction and buffers. An empty dtype changes
/// nothing. Parameters that are not floating point and those that DDP ignores
/// are not cast. With float16 small gradients become 0 unless the caller scales
/// the loss; bfloat16 needs no scaling.
/// Source: torch/nn/parallel/distributed.py, _MixedPrecision.
struct MixedPrecision {
  /// The dtype of the parameters in forward and backward.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// The dtype in which buckets are reduced. The default is param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  /// The dtype of the buffers from the first forward on.
  std::optional<c10::ScalarType> buffer_dtype = std::nullopt;
  /// Keeps .grad() in reduce_dtype after backward instead of the parameter's
  /// dtype.
  bool keep_low_precision_grads = false;
  /// Casts floating point arguments of forward() to param_dtype.
  bool cast_forward_inputs = true;
  /// Keeps parameters of libtorch's normalization modules in full precision.
  bool norms_in_full_precision = false;
  /// Names or patterns (see ParameterGroup) of further parameters that keep
  /// full precision.
  std::vector<std::string> full_precision = {};
};

/// Parameters that are reduced over other ranks than the rest, e.g. experts
/// that not every replica has.
struct ParameterGroup {
  /// Fully qualified names, or patterns with "*" and "?" (which match dots
  /// too), e.g. "layers.*.experts.*".
  std::vector<std::string> parameters;
  /// A 1-D mesh of some or all ranks of the replicas' mesh.
  mesh::DeviceMesh mesh;
  /// The divisor of the sum of the gradients. The default is the size of
  /// `mesh`.
  std::optional<double> divide_by = std::nullopt;
};

/// How the gradients of a bucket are reduced.
enum class BucketMode {
  /// Copied into one tensor and reduced together.
  kConcatenated,
  /// Reduced in place in one coalesced collective.
  kCoalesced,
  /// Reduced separately, each as soon as it is accumulated.
  kPerParameter,
};

/// The options of PyTorch's DistributedDataParallel by their names, followed by
/// Weft's. docs/ddp.md has a table.
struct DistributedDataParallelOptions {
  /// The maximum size of a bucket in MiB. The default is 25, with a first
  /// bucket of 1 so that communication starts early.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// The older name of forward_sync_buffers. At most one of them may be set.
  std::optional<bool> broadcast_buffers = std::nullopt;
  /// Compares the replicas' parameters and buffers and copies the first
  /// replica's values to all. If false, the caller must ensure that they are
  /// equal.
  bool init_sync = true;
  /// Makes .grad() a view of a bucket after backward. Otherwise it is a
  /// separate tensor, which costs a copy and its memory. The next backward
  /// writes to the same memory: clone a gradient that is needed after
  /// zero_grad(). PyTorch's default is false.
  bool gradient_as_bucket_view = true;
  /// kAvg, or kSum for a loss that is already divided by the global count. With
  /// kSum, gradients must be zeroed between synchronized backward passes.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
  /// Copies the first replica's buffers (running statistics of batch norm) to
  /// all replicas before a training forward, unless the previous training
  /// forward was under no_sync(): once for all accumulated ones. The default is
  /// true.
  std::optional<bool> forward_sync_buffers = std::nullopt;
  /// The caps of the first buckets in MiB. The other buckets use bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};
  /// Set this if some parameters get no gradient on some or all replicas,
  /// possibly others in each step: the graph is searched for them after
  /// forward. If no replica has a gradient, .grad() does not change.
  bool find_unused_parameters = false;
  /// Set this if every step has the graph of the first step: parameters may
  /// then be unused or used several times (re-entrant checkpointing) without a
  /// search.
  bool static_graph = false;
  /// Skips the reduction of buckets for which no replica has a gradient.
  bool skip_all_reduce_unused_params = false;
  /// Names of parameters that share one additional bucket, which is reduced
  /// when the gradient of `param_to_hook_all_reduce` is ready.
  std::vector<std::string> delay_all_reduce_named_params = {};
  /// See delay_all_reduce_named_params.
  std::string param_to_hook_all_reduce = {};
  /// Computes and reduces in other dtypes than those of the parameters.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
  /// Copies all gradients of a bucket in one call.
  bool batched_grad_copy = false;
  /// Allocates a bucket when its first gradient is ready and frees it after
  /// backward, unless gradients are views of it.
  bool lazy_bucket_allocation = false;
  /// Names of parameters and buffers that are not compared, broadcast, reduced
  /// or cast.
  std::set<std::string> params_and_buffers_to_ignore = {};

  // Beyond PyTorch's.

  /// The way in which the gradients of a bucket are reduced.
  BucketMode bucket_mode = BucketMode::kConcatenated;
  /// The groups of parameters with their own ranks. The first group that
  /// matches a parameter applies.
  std::vector<ParameterGroup> parameter_groups = {};
  /// Chooses the caps from the times at which gradients were ready in the first
  /// backward and from the cost of a reduction, both measured on the first
  /// rank. bucket_names() returns the result.
  bool auto_bucketing = false;
  /// Fails on every rank if a gradient to be reduced is not finite. The error
  /// names the parameter and the ranks. Costs a pass over the buckets.
  /// Source: Megatron-LM, DistributedDataParallelConfig.
  bool check_for_nan_in_grad = false;
};

/// Returns forward_sync_buffers under either name.
bool syncs_buffers_in_forward(const DistributedDataParallelOptions& options);

/// Returns true if unused parameters are searched for in each step: not with a
/// static graph, where the first one is enough.
bool finds_unused_in_each_step(const DistributedDataParallelOptions& options);

/// Formats the options that must be equal on all replicas, one line each, for
/// messages.
std::vector<std::string> describe_options(
    const DistributedDataParallelOptions& options);

} // namespace weft::ddp
