#include "tests/ddp/join/join_cases.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"

namespace weft::test {
namespace {

constexpr double kPowerSGDTolerance = 1e-7; // of full rank
constexpr double kStackedTolerance = 2e-3;  // halves

std::shared_ptr<data_parallel::CommHook> full_rank_power_sgd() {
  return std::make_shared<data_parallel::PowerSGDHook>(
      data_parallel::PowerSGDOptions{
          .matrix_approximation_rank = 6,
          .start_powerSGD_iter = 2,
          .min_compression_rate = 0.1});
}

/// The names of oracle/join.py, and Weft's.
const std::vector<JoinFeature>& join_features() {
  static const std::vector<JoinFeature> features = {
      {"power_sgd",
       [](JoinSetup& s) {
         s.hook = full_rank_power_sgd;
         s.tolerance = std::max(s.tolerance, kPowerSGDTolerance);
       }},
      {"stacked_hook",
       [](JoinSetup& s) {
         s.hook = [] {
           return data_parallel::fp16_compress_wrapper(full_rank_power_sgd());
         };
         s.tolerance = std::max(s.tolerance, kStackedTolerance);
       }},
      {"clip", [](JoinSetup& s) { s.max_norm = 0.1; }},
      {"manual_finalization",
       [](JoinSetup& s) { s.finalizes_manually = true; }},
      {"experts", [](JoinSetup& s) { s.has_experts = true; }},
      {"float", [](JoinSetup& s) {
         s.dtype = at::kFloat;
         s.tolerance = std::max(s.tolerance, 1e-5);
       }}};
  return features;
}

template <class Features, class Setup>
bool apply(const Features& features, const std::string& part, Setup& setup) {
  for (const auto& feature : features) {
    if (feature.name == part) {
      feature.change(setup);
      return true;
    }
  }
  return false;
}

void add_join_pairs(
    std::vector<std::string>& cases,
    const std::string& first,
    const std::vector<std::string>& seconds) {
  for (const auto& second : seconds) {
    cases.push_back(first + "+" + second);
  }
}

std::vector<std::vector<int64_t>> counts_of(
    int64_t dp,
    const JoinSetup& setup) {
  using Counts = std::vector<std::vector<int64_t>>;
  if (setup.micro == 1) {
    return dp == 1   ? Counts{{5}, {0}}
           : dp == 2 ? Counts{{5, 3}, {3, 5}, {8, 0}, {0, 8}, {4, 4}}
           : dp == 3 ? Counts{{5, 3, 8}, {0, 4, 2}}
                     : Counts{{5, 3, 2, 7}, {0, 0, 4, 2}, {1, 6, 0, 3}};
  }
  // Without no_sync() a step that is cut short has no backward.
  if (setup.joint) {
    return dp == 1   ? Counts{{4}}
           : dp == 2 ? Counts{{6, 2}, {2, 4}}
                     : Counts{{4, 0, 6}};
  }
  return dp == 1   ? Counts{{4}, {3}}
         : dp == 2 ? Counts{{6, 2}, {2, 4}, {5, 3}, {3, 4}}
         : dp == 3 ? Counts{{4, 0, 6}, {3, 6, 1}}
                   : Counts{{4, 0, 6, 2}, {3, 6, 1, 4}, {2, 3, 5, 1}};
}

/// A sum has no divisor, and what hooks divide by is their own.
bool allows(const JoinSetup& setup, Division division) {
  return setup.options.reduce_op == mesh::ReduceOp::kAvg ||
         division == Division::kInitial;
}

} // namespace

int64_t join_rows(int64_t replica, int64_t batch) {
  return 2 + (replica + batch) % 3;
}

JoinSetup join_setup_of(const std::string& name) {
  JoinSetup setup;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, '+');) {
    if (!apply(features_of_pytorch(), part, setup) &&
        !apply(features_of_weft(), part, setup) &&
        !apply(join_features(), part, setup)) {
      throw std::invalid_argument("no feature is called " + part);
    }
  }
  return setup;
}

JoinSetup JoinRun::setup() const {
  return join_setup_of(name);
}

std::string JoinSetup::experts() const {
  if (!has_experts) {
    return {};
  }
  return model == "branches" ? "left." : "b.";
}

std::vector<std::string> join_cases() {
  std::vector<std::string> cases = {
      "plain",
      "float",
      "zeroed",
      "bucket_cap_mb",
      "auto_bucketing",
      "broadcast_buffers",
      "own_buffers+broadcast_buffers",
      "broadcast_buffers_off",
      "init_sync",
      "find_unused_parameters",
      "skip_all_reduce_unused_params",
      "gradient_as_bucket_view",
      "gradient_copies",
      "static_graph",
      "static_graph_unused",
      "static_graph_checkpointed",
      "reused",
      "tied",
      "embedding",
      "sparse_embedding",
      "no_sync",
      "no_sync_later",
      "multiple_forwards",
      "delay_all_reduce",
      "mixed_precision",
      "mixed_precision_reduce",
      "mixed_precision_bf16",
      "mixed_precision_buffers",
      "norms_in_full_precision",
      "batched_grad_copy",
      "lazy_bucket_allocation",
      "ignored_parameters",
      "optimizer_in_backward",
      "register_fused_optim",
      "allreduce_hook",
      "fp16_compress_hook",
      "bf16_compress_hook",
      "power_sgd",
      "stacked_hook",
      "coalesced",
      "per_parameter",
      "check_for_nan_in_grad",
      "reduce_op_sum",
      "clip",
      "manual_finalization"};
  add_join_pairs(
      cases,
      "no_sync",
      {"zeroed",
       "broadcast_buffers",
       "bucket_cap_mb",
       "gradient_as_bucket_view",
       "gradient_copies",
       "static_graph_unused",
       "delay_all_reduce",
       "mixed_precision",
       "power_sgd",
       "coalesced",
       "per_parameter",
       "check_for_nan_in_grad",
       "clip",
       "manual_finalization"});
  add_join_pairs(
      cases,
      "find_unused_parameters",
      {"bucket_cap_mb",
       "no_sync",
       "zeroed",
       "gradient_copies",
       "mixed_precision",
       "multiple_forwards",
       "allreduce_hook",
       "coalesced",
       "per_parameter",
       "manual_finalization",
       "optimizer_in_backward"});
  add_join_pairs(
      cases,
      "static_graph",
      {"no_sync",
       "multiple_forwards",
       "reused",
       "mixed_precision",
       "power_sgd"});
  add_join_pairs(
      cases,
      "static_graph_unused",
      {"multiple_forwards", "gradient_copies", "coalesced"});
  add_join_pairs(
      cases,
      "mixed_precision",
      {"gradient_copies", "fp16_compress_hook", "clip", "coalesced"});
  add_join_pairs(
      cases, "coalesced", {"zeroed", "gradient_copies", "multiple_forwards"});
  add_join_pairs(
      cases, "manual_finalization", {"power_sgd", "multiple_forwards", "clip"});
  cases.push_back("fp16_compress_hook+no_sync");
  cases.push_back("skip_all_reduce_unused_params+no_sync");
  cases.push_back("check_for_nan_in_grad+power_sgd");
  return cases;
}

std::vector<JoinRun> join_runs(int64_t dp, int64_t tp) {
  std::vector<std::string> cases = join_cases();
  if (dp == 4) {
    cases = {
        "experts",
        "experts+bucket_cap_mb",
        "experts+no_sync",
        "experts+coalesced",
        "experts+gradient_copies",
        "experts+find_unused_parameters"};
  }
  std::vector<JoinRun> runs;
  for (const auto& name : cases) {
    const auto setup = join_setup_of(name);
    // A DTensor's gradient is never sparse.
    if (tp > 1 && setup.model == "sparse_embedding") {
      continue;
    }
    for (const auto& counts : counts_of(dp, setup)) {
      for (const auto division :
           {Division::kInitial, Division::kEffective, Division::kSamples}) {
        if (allows(setup, division)) {
          runs.push_back(
              {.name = name, .tp = tp, .counts = counts, .division = division});
        }
      }
    }
  }
  return runs;
}

const char* name_of(Division division) {
  switch (division) {
    case Division::kInitial:
      return "initial";
    case Division::kEffective:
      return "effective";
    case Division::kSamples:
      return "samples";
  }
  return "";
}

std::string join_text(
    const std::vector<int64_t>& numbers,
    const std::string& separator) {
  std::string text;
  for (const auto number : numbers) {
    text += (text.empty() ? "" : separator) + std::to_string(number);
  }
  return text;
}

std::string JoinRun::describe() const {
  return std::to_string(dp()) + "x" + std::to_string(tp) + ", counts " +
         join_text(counts, ",") + ", " + name_of(division) + ": " + name;
}

} // namespace weft::test
