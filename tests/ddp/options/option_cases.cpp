#include "tests/ddp/options/option_cases.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace weft::test {
namespace {

/// The first name with each of the second ones.
void add_pairs(
    std::vector<std::string>& cases,
    const std::string& first,
    const std::vector<std::string>& seconds) {
  for (const auto& second : seconds) {
    cases.push_back(first + "+" + second);
  }
}

/// The cases of oracle/option_cases.py.
std::vector<std::string> pairs_of_pytorch() {
  const std::string view = "gradient_as_bucket_view";
  std::vector<std::string> cases = {
      "no_sync+zeroed+" + view,
      "find_unused_parameters+no_sync+" + view,
      "find_unused_parameters+zeroed+" + view,
      "multiple_forwards+reused",
      "forward_sync_buffers_off+mixed_precision_buffers",
      "find_unused_parameters+sparse_embedding",
      "fp16_compress_hook+no_sync"};
  add_pairs(
      cases, "bucket_cap_mb", {"no_sync", "static_graph", "multiple_forwards"});
  add_pairs(cases, "tied", {"no_sync", "static_graph", "mixed_precision"});
  add_pairs(
      cases,
      "sparse_embedding",
      {view, "static_graph", "batched_grad_copy", "lazy_bucket_allocation"});
  add_pairs(
      cases,
      "delay_all_reduce",
      {"zeroed",
       "static_graph",
       "mixed_precision",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "allreduce_hook"});
  add_pairs(
      cases,
      "skip_all_reduce_unused_params",
      {"batched_grad_copy", "lazy_bucket_allocation", "zeroed"});
  add_pairs(
      cases,
      "mixed_precision",
      {"multiple_forwards",
       "zeroed",
       "bucket_cap_mb",
       "lazy_bucket_allocation",
       "allreduce_hook"});
  add_pairs(
      cases,
      "optimizer_in_backward",
      {"allreduce_hook",
       "mixed_precision",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "static_graph_unused"});
  add_pairs(
      cases,
      "ignored_parameters",
      {"allreduce_hook", "no_sync", "static_graph", "batched_grad_copy"});
  add_pairs(
      cases,
      "find_unused_parameters",
      {"all_used",
       "bucket_cap_mb",
       "no_sync",
       view,
       "static_graph_unused",
       "multiple_forwards",
       "zeroed",
       "allreduce_hook",
       "mixed_precision",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "optimizer_in_backward"});
  add_pairs(
      cases,
      "static_graph",
      {"no_sync",
       "no_sync_later",
       "multiple_forwards",
       "reused",
       "bucket_cap_mb_list",
       view,
       "allreduce_hook",
       "mixed_precision",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "optimizer_in_backward"});
  for (const std::string graph :
       {"static_graph_unused", "static_graph_checkpointed"}) {
    add_pairs(
        cases, graph, {"no_sync", "no_sync_later", "multiple_forwards", view});
  }
  add_pairs(
      cases,
      "no_sync",
      {"zeroed",
       view,
       "forward_sync_buffers",
       "mixed_precision",
       "allreduce_hook",
       "delay_all_reduce",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "skip_all_reduce_unused_params",
       "sparse_embedding"});
  add_pairs(
      cases,
      view,
      {"zeroed",
       "mixed_precision",
       "mixed_precision_bf16",
       "allreduce_hook",
       "fp16_compress_hook",
       "delay_all_reduce",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "optimizer_in_backward",
       "skip_all_reduce_unused_params",
       "ignored_parameters"});
  add_pairs(
      cases,
      "own_buffers",
      {"forward_sync_buffers",
       "forward_sync_buffers_off",
       "broadcast_buffers_off"});
  add_pairs(
      cases,
      "batched_grad_copy",
      {"lazy_bucket_allocation",
       "allreduce_hook",
       "mixed_precision",
       "zeroed"});
  return cases;
}

/// Weft's own options beside PyTorch's. Gradients are views of buckets unless
/// "gradient_copies" is there.
std::vector<std::string> pairs_of_weft() {
  std::vector<std::string> cases;
  add_pairs(
      cases,
      "gradient_copies",
      {"zeroed",
       "bucket_cap_mb",
       "no_sync",
       "multiple_forwards",
       "find_unused_parameters",
       "static_graph_unused",
       "static_graph_checkpointed",
       "delay_all_reduce",
       "mixed_precision",
       "mixed_precision_bf16",
       "batched_grad_copy",
       "lazy_bucket_allocation",
       "fp16_compress_hook",
       "ignored_parameters",
       "optimizer_in_backward",
       "skip_all_reduce_unused_params",
       "keep_low_precision_grads"});
  for (const std::string mode : {"coalesced", "per_parameter"}) {
    add_pairs(
        cases,
        mode,
        {"gradient_copies",
         "zeroed",
         "no_sync",
         "multiple_forwards",
         "find_unused_parameters",
         "static_graph_unused",
         "static_graph_checkpointed",
         "mixed_precision",
         "ignored_parameters",
         "delay_all_reduce",
         "skip_all_reduce_unused_params",
         "tied",
         "embedding"});
    cases.push_back(mode + "+find_unused_parameters+no_sync");
  }
  add_pairs(
      cases,
      "auto_bucketing",
      {"no_sync", "find_unused_parameters", "static_graph", "bucket_cap_mb"});
  add_pairs(
      cases,
      "check_for_nan_in_grad",
      {"find_unused_parameters",
       "no_sync",
       "mixed_precision",
       "allreduce_hook"});
  add_pairs(
      cases,
      "reduce_op_sum",
      {"find_unused_parameters", "no_sync", "mixed_precision", "coalesced"});
  cases.push_back("gradient_copies+find_unused_parameters+no_sync");
  return cases;
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, '+');) {
    parts.push_back(part);
  }
  return parts;
}

const OptionFeature* find(
    const std::vector<OptionFeature>& features,
    const std::string& name) {
  const auto found =
      std::find_if(features.begin(), features.end(), [&](const auto& each) {
        return each.name == name;
      });
  return found == features.end() ? nullptr : &*found;
}

const OptionFeature& feature_of(const std::string& part) {
  const auto* feature = find(features_of_pytorch(), part);
  feature = feature ? feature : find(features_of_weft(), part);
  if (!feature) {
    throw std::invalid_argument("no feature is called " + part);
  }
  return *feature;
}

} // namespace

std::vector<std::string> option_cases() {
  std::vector<std::string> cases;
  for (const auto* features : {&features_of_pytorch(), &features_of_weft()}) {
    for (const auto& feature : *features) {
      cases.push_back(feature.name);
    }
  }
  for (const auto& more : {pairs_of_pytorch(), pairs_of_weft()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

std::vector<std::string> option_cases(const std::string& area) {
  std::vector<std::string> cases;
  for (const auto& name : option_cases()) {
    if (feature_of(parts_of(name).front()).area == area) {
      cases.push_back(name);
    }
  }
  return cases;
}

OptionSetup setup_of(const std::string& name) {
  OptionSetup setup;
  for (const auto& part : parts_of(name)) {
    feature_of(part).change(setup);
  }
  return setup;
}

std::optional<std::string> pytorch_case(const std::string& name) {
  if (setup_of(name).dtype != at::kDouble) {
    return std::nullopt;
  }
  std::string result;
  for (const auto& part : parts_of(name)) {
    const auto* of_weft = find(features_of_weft(), part);
    const auto& like = of_weft ? of_weft->like : part;
    result += (result.empty() || like.empty() ? "" : "+") + like;
  }
  return result.empty() ? "plain" : result;
}

int64_t OptionSetup::kind(int64_t rank, int64_t step) const {
  constexpr int64_t kKinds = 3;
  return fixed_graph ? 0 : (rank + step) % kKinds;
}

bool OptionSetup::is_paused(int64_t step, int64_t i) const {
  return no_sync_from && step >= *no_sync_from && i + 1 < micro;
}

bool OptionSetup::synchronizes_buffers() const {
  return options.forward_sync_buffers.value_or(
      options.broadcast_buffers.value_or(true));
}

bool OptionSetup::is_ignored(const std::string& name) const {
  return options.params_and_buffers_to_ignore.contains(name);
}

} // namespace weft::test
