// What the parts of a case's name change.
#include <algorithm>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "tests/ddp/options/option_cases.h"

namespace weft::test {
namespace {

using ddp::BucketMode;
using ddp::MixedPrecision;

constexpr double kTiny = 1e-4; // MiB: about one parameter a bucket
// Per dtype of what is computed or reduced in it; values are up to 1.
constexpr double kFloatTolerance = 1e-5;
constexpr double kHalfTolerance = 2e-3;
// Batch norm divides by deviations of about 0.2.
constexpr double kHalfNormTolerance = 1e-2;
constexpr double kBFloat16Tolerance = 2e-2;

void find_unused(OptionSetup& s) {
  s.model = "branches";
  s.options.find_unused_parameters = true;
}

void static_unused(OptionSetup& s) {
  s.model = "branches";
  s.options.static_graph = true;
  s.fixed_graph = true;
}

/// Adds to what is there; the caller may refine it.
MixedPrecision& mix(
    OptionSetup& s,
    std::optional<at::ScalarType> param_dtype,
    std::optional<at::ScalarType> reduce_dtype,
    double tolerance) {
  auto& dtypes = s.options.mixed_precision.emplace();
  dtypes.param_dtype = param_dtype;
  dtypes.reduce_dtype = reduce_dtype;
  s.tolerance = std::max(s.tolerance, tolerance);
  return dtypes;
}

/// BatchNorm takes halves with parameters and buffers in float32.
MixedPrecision& mix_but_norms(OptionSetup& s) {
  s.model = "norm";
  s.dtype = at::kFloat;
  return mix(s, at::kHalf, at::kFloat, kHalfNormTolerance);
}

void delay(OptionSetup& s) {
  s.options.delay_all_reduce_named_params = {"b.weight", "c.weight", "c.bias"};
  s.options.param_to_hook_all_reduce = "a.weight";
}

void skip_unused(OptionSetup& s) {
  find_unused(s);
  s.fixed_graph = true;
  s.options.skip_all_reduce_unused_params = true;
}

void use_hook(
    OptionSetup& s,
    std::shared_ptr<data_parallel::CommHook> (*make)(),
    double tolerance) {
  s.hook = make;
  s.tolerance = std::max(s.tolerance, tolerance);
}

using S = OptionSetup;

} // namespace

const std::vector<OptionFeature>& features_of_pytorch() {
  static const std::vector<OptionFeature> features = {
      {"Bucket", "plain", [](S&) {}},
      {"Bucket", "zeroed", [](S& s) { s.zero = true; }},
      {"Bucket",
       "bucket_cap_mb",
       [](S& s) { s.options.bucket_cap_mb = kTiny; }},
      {"Bucket",
       "bucket_cap_mb_list",
       [](S& s) {
         s.options.bucket_cap_mb_list = {kTiny, 2 * kTiny};
       }},
      {"Buffer",
       "broadcast_buffers",
       [](S& s) {
         s.model = "norm";
         s.options.broadcast_buffers = true;
       }},
      {"Buffer",
       "broadcast_buffers_off",
       [](S& s) {
         s.model = "norm";
         s.options.broadcast_buffers = false;
       }},
      {"Buffer",
       "forward_sync_buffers",
       [](S& s) {
         s.model = "norm";
         s.options.forward_sync_buffers = true;
       }},
      {"Buffer",
       "forward_sync_buffers_off",
       [](S& s) {
         s.model = "norm";
         s.options.forward_sync_buffers = false;
       }},
      {"Buffer", "own_buffers", [](S& s) { s.own_buffers = true; }},
      {"InitSync", "init_sync", [](S& s) { s.own_parameters = true; }},
      {"InitSync", "init_sync_off", [](S& s) { s.options.init_sync = false; }},
      {"Unused", "find_unused_parameters", find_unused},
      {"Unused", "all_used", [](S& s) { s.model = "mlp"; }},
      {"Unused", "fixed_graph", [](S& s) { s.fixed_graph = true; }},
      {"View",
       "gradient_as_bucket_view",
       [](S& s) { s.options.gradient_as_bucket_view = true; }},
      {"StaticGraph",
       "static_graph",
       [](S& s) { s.options.static_graph = true; }},
      {"StaticGraph", "static_graph_unused", static_unused},
      {"StaticGraph",
       "static_graph_checkpointed",
       [](S& s) {
         s.model = "checkpointed";
         s.options.static_graph = true;
       }},
      {"Model", "reused", [](S& s) { s.model = "reused"; }},
      {"Model", "tied", [](S& s) { s.model = "tied"; }},
      {"Model", "embedding", [](S& s) { s.model = "embedding"; }},
      {"Model", "sparse_embedding", [](S& s) { s.model = "sparse_embedding"; }},
      {"Accumulation",
       "multiple_forwards",
       [](S& s) {
         s.micro = 2;
         s.joint = true;
       }},
      {"Accumulation",
       "no_sync",
       [](S& s) {
         s.micro = 2;
         s.no_sync_from = 0;
       }},
      {"Accumulation",
       "no_sync_later",
       [](S& s) {
         s.micro = 2;
         s.no_sync_from = 1;
       }},
      {"Delay", "delay_all_reduce", delay},
      {"MixedPrecision",
       "mixed_precision",
       [](S& s) { mix(s, at::kFloat, at::kFloat, kFloatTolerance); }},
      {"MixedPrecision",
       "mixed_precision_reduce",
       [](S& s) { mix(s, {}, at::kFloat, kFloatTolerance); }},
      {"MixedPrecision",
       "mixed_precision_bf16",
       [](S& s) { mix(s, at::kBFloat16, at::kBFloat16, kBFloat16Tolerance); }},
      {"MixedPrecision",
       "mixed_precision_bf16_fp32",
       [](S& s) { mix(s, at::kBFloat16, at::kFloat, kBFloat16Tolerance); }},
      {"MixedPrecision",
       "mixed_precision_buffers",
       [](S& s) {
         s.model = "norm";
         mix(s, at::kFloat, at::kFloat, kFloatTolerance).buffer_dtype =
             at::kFloat;
       }},
      {"Unused", "skip_all_reduce_unused_params", skip_unused},
      {"Copy",
       "batched_grad_copy",
       [](S& s) { s.options.batched_grad_copy = true; }},
      {"Copy",
       "lazy_bucket_allocation",
       [](S& s) { s.options.lazy_bucket_allocation = true; }},
      {"Hook",
       "allreduce_hook",
       [](S& s) { use_hook(s, data_parallel::allreduce_hook, 0); }},
      {"Hook",
       "fp16_compress_hook",
       [](S& s) {
         use_hook(s, data_parallel::fp16_compress_hook, kHalfTolerance);
       }},
      {"Hook",
       "bf16_compress_hook",
       [](S& s) {
         use_hook(s, data_parallel::bf16_compress_hook, kBFloat16Tolerance);
       }},
      {"Ignore",
       "ignored_parameters",
       [](S& s) {
         s.options.params_and_buffers_to_ignore = {"b.weight", "b.bias"};
       }},
      {"Ignore",
       "ignored_buffers",
       [](S& s) {
         s.model = "norm";
         s.own_buffers = true;
         s.options.params_and_buffers_to_ignore = {
             "bn.running_mean", "bn.running_var"};
       }},
      {"OptimizerInBackward",
       "optimizer_in_backward",
       [](S& s) { s.optimizer = S::Optimizer::kInBackward; }},
  };
  return features;
}

const std::vector<OptionFeature>& features_of_weft() {
  static const std::vector<OptionFeature> features = {
      {"View",
       "gradient_copies",
       [](S& s) { s.options.gradient_as_bucket_view = false; }},
      {"Mode",
       "coalesced",
       [](S& s) { s.options.bucket_mode = BucketMode::kCoalesced; }},
      {"Mode",
       "per_parameter",
       [](S& s) { s.options.bucket_mode = BucketMode::kPerParameter; }},
      {"Bucket",
       "auto_bucketing",
       [](S& s) { s.options.auto_bucketing = true; }},
      {"Bucket",
       "check_for_nan_in_grad",
       [](S& s) { s.options.check_for_nan_in_grad = true; }},
      {"Bucket",
       "reduce_op_sum",
       [](S& s) { s.options.reduce_op = mesh::ReduceOp::kSum; }},
      {"OptimizerInBackward",
       "register_fused_optim",
       [](S& s) { s.optimizer = S::Optimizer::kFused; },
       "optimizer_in_backward"},
      {"MixedPrecision",
       "keep_low_precision_grads",
       [](S& s) {
         mix(s, at::kFloat, at::kFloat, kFloatTolerance)
             .keep_low_precision_grads = true;
       },
       "mixed_precision"},
      {"MixedPrecision",
       "cast_forward_inputs_off",
       [](S& s) {
         mix(s, at::kFloat, at::kFloat, kFloatTolerance).cast_forward_inputs =
             false;
       },
       "mixed_precision"},
      {"MixedPrecision",
       "norms_in_full_precision",
       [](S& s) { mix_but_norms(s).norms_in_full_precision = true; }},
      {"MixedPrecision",
       "full_precision",
       [](S& s) { mix_but_norms(s).full_precision = {"bn.*"}; }},
  };
  return features;
}

} // namespace weft::test
