// What the parts of a case's name change.
#include <algorithm>

#include "ddp/comm_hooks/default_hooks.h"
#include "tests/ddp/option_cases.h"

namespace weft::test {
namespace {

using ddp::BucketMode;
using ddp::MixedPrecision;

constexpr double kTiny = 1e-4; // MiB: about one parameter a bucket
// Per dtype of what is computed or reduced in it; values are up to 1.
constexpr double kFloatTolerance = 1e-5;
constexpr double kHalfTolerance = 2e-3;
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

/// BatchNorm takes bfloat16 with parameters and buffers in float32.
MixedPrecision& mix_but_norms(OptionSetup& s) {
  s.model = "norm";
  s.dtype = at::kFloat;
  return mix(s, at::kBFloat16, at::kFloat, kBFloat16Tolerance);
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
    std::shared_ptr<ddp::CommHook> (*make)(),
    double tolerance) {
  s.hook = make;
  s.tolerance = std::max(s.tolerance, tolerance);
}

using S = OptionSetup;

} // namespace

const std::vector<OptionFeature>& features_of_pytorch() {
  static const std::vector<OptionFeature> features = {
      {"plain", [](S&) {}},
      {"zeroed", [](S& s) { s.zero = true; }},
      {"bucket_cap_mb", [](S& s) { s.options.bucket_cap_mb = kTiny; }},
      {"bucket_cap_mb_list",
       [](S& s) {
         s.options.bucket_cap_mb_list = {kTiny, 2 * kTiny};
       }},
      {"broadcast_buffers",
       [](S& s) {
         s.model = "norm";
         s.options.broadcast_buffers = true;
       }},
      {"broadcast_buffers_off",
       [](S& s) {
         s.model = "norm";
         s.options.broadcast_buffers = false;
       }},
      {"forward_sync_buffers",
       [](S& s) {
         s.model = "norm";
         s.options.forward_sync_buffers = true;
       }},
      {"forward_sync_buffers_off",
       [](S& s) {
         s.model = "norm";
         s.options.forward_sync_buffers = false;
       }},
      {"own_buffers", [](S& s) { s.own_buffers = true; }},
      {"init_sync", [](S& s) { s.own_parameters = true; }},
      {"init_sync_off", [](S& s) { s.options.init_sync = false; }},
      {"find_unused_parameters", find_unused},
      {"all_used", [](S& s) { s.model = "mlp"; }},
      {"fixed_graph", [](S& s) { s.fixed_graph = true; }},
      {"gradient_as_bucket_view",
       [](S& s) { s.options.gradient_as_bucket_view = true; }},
      {"static_graph", [](S& s) { s.options.static_graph = true; }},
      {"static_graph_unused", static_unused},
      {"static_graph_checkpointed",
       [](S& s) {
         s.model = "checkpointed";
         s.options.static_graph = true;
       }},
      {"reused", [](S& s) { s.model = "reused"; }},
      {"tied", [](S& s) { s.model = "tied"; }},
      {"embedding", [](S& s) { s.model = "embedding"; }},
      {"sparse_embedding", [](S& s) { s.model = "sparse_embedding"; }},
      {"multiple_forwards",
       [](S& s) {
         s.micro = 2;
         s.joint = true;
       }},
      {"no_sync",
       [](S& s) {
         s.micro = 2;
         s.no_sync_from = 0;
       }},
      {"no_sync_later",
       [](S& s) {
         s.micro = 2;
         s.no_sync_from = 1;
       }},
      {"delay_all_reduce", delay},
      {"mixed_precision",
       [](S& s) { mix(s, at::kFloat, at::kFloat, kFloatTolerance); }},
      {"mixed_precision_reduce",
       [](S& s) { mix(s, {}, at::kFloat, kFloatTolerance); }},
      {"mixed_precision_bf16",
       [](S& s) { mix(s, at::kBFloat16, at::kBFloat16, kBFloat16Tolerance); }},
      {"mixed_precision_bf16_fp32",
       [](S& s) { mix(s, at::kBFloat16, at::kFloat, kBFloat16Tolerance); }},
      {"mixed_precision_buffers",
       [](S& s) {
         s.model = "norm";
         mix(s, at::kFloat, at::kFloat, kFloatTolerance).buffer_dtype =
             at::kFloat;
       }},
      {"skip_all_reduce_unused_params", skip_unused},
      {"batched_grad_copy", [](S& s) { s.options.batched_grad_copy = true; }},
      {"lazy_bucket_allocation",
       [](S& s) { s.options.lazy_bucket_allocation = true; }},
      {"allreduce_hook", [](S& s) { use_hook(s, ddp::allreduce_hook, 0); }},
      {"fp16_compress_hook",
       [](S& s) { use_hook(s, ddp::fp16_compress_hook, kHalfTolerance); }},
      {"bf16_compress_hook",
       [](S& s) { use_hook(s, ddp::bf16_compress_hook, kBFloat16Tolerance); }},
      {"ignored_parameters",
       [](S& s) {
         s.options.params_and_buffers_to_ignore = {"b.weight", "b.bias"};
       }},
      {"ignored_buffers",
       [](S& s) {
         s.model = "norm";
         s.own_buffers = true;
         s.options.params_and_buffers_to_ignore = {
             "bn.running_mean", "bn.running_var"};
       }},
      {"optimizer_in_backward",
       [](S& s) { s.optimizer = S::Optimizer::kInBackward; }},
  };
  return features;
}

const std::vector<OptionFeature>& features_of_weft() {
  static const std::vector<OptionFeature> features = {
      {"gradient_copies",
       [](S& s) { s.options.gradient_as_bucket_view = false; }},
      {"coalesced",
       [](S& s) { s.options.bucket_mode = BucketMode::kCoalesced; }},
      {"per_parameter",
       [](S& s) { s.options.bucket_mode = BucketMode::kPerParameter; }},
      {"auto_bucketing", [](S& s) { s.options.auto_bucketing = true; }},
      {"check_for_nan_in_grad",
       [](S& s) { s.options.check_for_nan_in_grad = true; }},
      {"reduce_op_sum",
       [](S& s) { s.options.reduce_op = mesh::ReduceOp::kSum; }},
      {"register_fused_optim",
       [](S& s) { s.optimizer = S::Optimizer::kFused; },
       "optimizer_in_backward"},
      {"keep_low_precision_grads",
       [](S& s) {
         mix(s, at::kFloat, at::kFloat, kFloatTolerance)
             .keep_low_precision_grads = true;
       },
       "mixed_precision"},
      {"cast_forward_inputs_off",
       [](S& s) {
         mix(s, at::kFloat, at::kFloat, kFloatTolerance).cast_forward_inputs =
             false;
       },
       "mixed_precision"},
      {"norms_in_full_precision",
       [](S& s) { mix_but_norms(s).norms_in_full_precision = true; }},
      {"full_precision",
       [](S& s) { mix_but_norms(s).full_precision = {"bn.*"}; }},
  };
  return features;
}

} // namespace weft::test
