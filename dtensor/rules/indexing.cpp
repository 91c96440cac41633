// Rules of ops that read or write elements at tensors of indices. Dims that are
// not indexed may be sharded, and so may the indices.

#include <algorithm>
#include <set>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index.h>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

// Note [Indexing by name]
// ~~~~~~~~~~~~~~~~~~~~~~~
// self[indices] has the dims of self that are not indexed, named 'a', 'b', ..,
// and the dims to which the indices broadcast, named 'A', 'B', .. The latter
// replace the indexed dims if those are adjacent, and come first otherwise. The
// number of elements that a mask picks depends on its values, so its dim is
// named '.'.
struct Indexing {
  /// The names of the dims of self and of self[indices].
  std::string self;
  std::string picked;
  std::vector<int64_t> picked_sizes;
  /// The names of the dims of each index tensor.
  std::vector<std::string> indices;
  bool has_mask = false;
  /// The names of self's dims under the mask, if a mask is the only index.
  /// Otherwise empty.
  std::string under_mask;

  explicit Indexing(const OpCall& call) {
    const auto sizes = call.tensors[0].sizes();
    self = rules::all_dims(call.tensors[0].dim());
    std::vector<int64_t> common;
    for (const auto& tensor : call.tensors) {
      if (tensor.argument == 1) {
        add_index(tensor, common);
      }
    }
    const auto letters = index_letters(common.size());
    for (const auto& tensor : call.tensors) {
      if (tensor.argument == 1) {
        indices.push_back(
            has_mask ? std::string(tensor.dim(), '.')
                     : rules::broadcast_dims(tensor.sizes(), common, letters));
      }
    }
    place(sizes, common, has_mask ? "." : letters);
  }

 private:
  static std::string index_letters(size_t count) {
    std::string letters;
    for (size_t d = 0; d < count; ++d) {
      letters += static_cast<char>('A' + d);
    }
    return letters;
  }

  // A mask covers several dims of self, so the position of a later index in the
  // list differs from its dim in self.
  void add_index(const TensorArgument& tensor, std::vector<int64_t>& common) {
    const auto dtype = tensor.tensor.scalar_type();
    const bool mask = dtype == at::kBool || dtype == at::kByte;
    const int64_t first = tensor.list_index + covered_;
    const int64_t count = mask ? tensor.dim() : 1;
    for (int64_t d = first; d < first + count; ++d) {
      indexed_.insert(d);
    }
    if (mask) {
      covered_ += count - 1;
      under_mask = has_index_ ? "" : self.substr(first, count);
      has_mask = true;
    } else {
      under_mask.clear();
      common = rules::broadcast_sizes(common, tensor.sizes());
    }
    has_index_ = true;
  }

  void place(
      c10::IntArrayRef sizes,
      std::vector<int64_t> common,
      const std::string& letters) {
    if (has_mask) {
      common = {-1};
    }
    const int64_t first = indexed_.empty() ? 0 : *indexed_.begin();
    const bool beside =
        indexed_.empty() ||
        *indexed_.rbegin() - first + 1 == static_cast<int64_t>(indexed_.size());
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
      if (indexed_.contains(d)) {
        self[d] = '.';
      } else {
        picked += self[d];
        picked_sizes.push_back(sizes[d]);
      }
    }
    const int64_t at = beside ? first : 0;
    picked.insert(at, letters);
    picked_sizes.insert(
        picked_sizes.begin() + at, common.begin(), common.end());
  }

  std::set<int64_t> indexed_;
  int64_t covered_ = 0;
  bool has_index_ = false;
};

// Returns one strategy per letter, from the names of the dims of all tensors of
// the call and of the output. If the output starts with '+' and lacks the
// letter, the output and the first tensor are Partial sums.
std::vector<Strategy> cut_letters(
    const std::vector<std::string>& tensors,
    const std::string& output) {
  std::set<char> letters;
  for (const auto& names : tensors) {
    letters.insert(names.begin(), names.end());
  }
  letters.erase('.');
  const auto at = [](const std::string& names, char letter) -> Placement {
    const auto position = names.find(letter);
    return position == std::string::npos
               ? Replicate()
               : Shard(static_cast<int64_t>(position));
  };
  std::vector<Strategy> strategies;
  for (const char letter : letters) {
    Strategy strategy;
    for (const auto& names : tensors) {
      strategy.inputs.push_back(at(names, letter));
    }
    const bool sums = output.starts_with('+');
    auto placement = at(sums ? output.substr(1) : output, letter);
    if (sums && placement.is_replicate()) {
      placement = strategy.inputs[0] = Partial();
    }
    strategy.outputs = {placement};
    strategies.push_back(std::move(strategy));
  }
  return strategies;
}

std::vector<Strategy> index(const OpCall& call, const StrategyContext&) {
  const Indexing indexing(call);
  std::vector<std::string> names{indexing.self};
  names.insert(names.end(), indexing.indices.begin(), indexing.indices.end());
  auto strategies = cut_letters(names, indexing.picked);
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

at::Tensor meta_like(const TensorArgument& tensor, at::ScalarType dtype) {
  return at::empty_strided(
      tensor.sizes(),
      tensor.tensor.strides(),
      at::TensorOptions(dtype).device(at::kMeta));
}

// Runs at::index on meta tensors, because libtorch chooses the order of the
// result's dims in memory.
std::vector<OutputMeta> index_meta(const OpCall& call) {
  // The number of elements that a mask picks depends on its values.
  if (Indexing(call).has_mask) {
    return {};
  }
  c10::List<std::optional<at::Tensor>> indices;
  for (size_t i = 1; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    while (static_cast<int64_t>(indices.size()) < tensor.list_index) {
      indices.push_back(std::nullopt);
    }
    indices.push_back(meta_like(tensor, at::kLong));
  }
  const auto result =
      at::index(meta_like(call.tensors[0], at::kFloat), indices);
  return {{result.sizes().vec(), result.strides().vec()}};
}

// Adds strategies for self[mask] = number, in which the mask is sharded like
// the dims of self that it covers.
void add_masked_number(
    std::vector<Strategy>& strategies,
    const Indexing& indexing,
    const OpCall& call) {
  const auto& values = call.tensors.back();
  if (indexing.under_mask.empty() || values.tensor.numel() != 1) {
    return;
  }
  const auto all = rules::all_dims(call.tensors[0].dim());
  auto self = all;
  for (auto& letter : self) {
    if (indexing.under_mask.find(letter) == std::string::npos) {
      letter = '.';
    }
  }
  for (auto& strategy : cut_letters({self, indexing.under_mask, ""}, self)) {
    strategies.push_back(std::move(strategy));
  }
}

// Adds Partial strategies for values that replace elements of self or are added
// to them. Self and values may be Partial with the same reduction. One of them
// may be replicated if the reduction preserves a number that all ranks have:
// average, min and max for a replacement, and the average of floats for an
// addition.
void add_written(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    bool accumulate,
    std::string_view values) {
  const auto linear = rules::linear_reductions(call);
  rules::add_pending(
      strategies,
      call,
      accumulate ? linear : rules::every_reduction(),
      {"self", values});
  rules::Reductions single{ReduceOp::kAvg};
  if (!accumulate) {
    single = rules::reductions_keeping(c10::IValue());
  } else if (linear.size() < 2) {
    single.clear();
  }
  rules::add_pending(strategies, call, single, {"self"});
  rules::add_pending(strategies, call, single, {values});
}

// index_put(self, indices, values, accumulate): if values are added, each rank
// may add its shard of them to a Partial sum.
std::vector<Strategy> index_put(const OpCall& call, const StrategyContext&) {
  const Indexing indexing(call);
  const auto& values = call.tensors.back();
  const bool accumulate = call.arguments[3].toBool();
  std::vector<Strategy> strategies;
  if (values.sizes().size() <= indexing.picked.size()) {
    std::vector<std::string> names{indexing.self};
    names.insert(names.end(), indexing.indices.begin(), indexing.indices.end());
    names.push_back(rules::broadcast_dims(
        values.sizes(), indexing.picked_sizes, indexing.picked));
    if (!accumulate) {
      for (auto& each : names) {
        std::ranges::replace_if(
            each, [](char c) { return c < 'a'; }, '.');
      }
    }
    strategies = cut_letters(names, (accumulate ? "+" : "") + indexing.self);
  }
  add_masked_number(strategies, indexing, call);
  add_written(strategies, call, accumulate, "values");
  return strategies;
}

// take(self, index): indices are positions in the flattened tensor, so self
// cannot be sharded.
std::vector<Strategy> take(const OpCall& call, const StrategyContext&) {
  const auto names = rules::all_dims(call.tensors[1].dim());
  auto strategies = rules::cut_named_dims(call, {{"index", names}}, {names});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<OutputMeta> index_sizes(const OpCall& call) {
  return {rules::contiguous(call.tensors[1].sizes().vec())};
}

// put(self, index, source, accumulate).
std::vector<Strategy> put(const OpCall& call, const StrategyContext&) {
  const bool accumulate = call.arguments[3].toBool();
  std::vector<Strategy> strategies;
  if (accumulate && call.tensors[1].sizes() == call.tensors[2].sizes()) {
    const auto names = rules::all_dims(call.tensors[1].dim());
    strategies = cut_letters({"", names, names}, "+");
  }
  add_written(strategies, call, accumulate, "source");
  return strategies;
}

// The elements of `source` that a shard needs depend on the full mask, so no
// dim can be sharded.
std::vector<Strategy> masked_scatter(
    const OpCall& call,
    const StrategyContext&) {
  std::vector<Strategy> strategies;
  add_written(strategies, call, /*accumulate=*/false, "source");
  return strategies;
}

std::vector<OutputMeta> masked_scatter_sizes(const OpCall& call) {
  auto sizes =
      rules::broadcast_sizes(call.tensors[0].sizes(), call.tensors[1].sizes());
  if (call.tensors[0].sizes() == c10::IntArrayRef(sizes)) {
    return rules::like_first(call);
  }
  return {rules::contiguous(std::move(sizes))};
}

} // namespace

void add_indexing_rules(RuleTable& table) {
  table.add("index _unsafe_index", {.strategies = index, .infer = index_meta});
  table.add(
      "index_put _index_put_impl _unsafe_index_put",
      {.strategies = index_put, .infer = rules::like_first});
  table.add("take", {.strategies = take, .infer = index_sizes});
  table.add("put", {.strategies = put, .infer = rules::like_first});
  table.add(
      "masked_scatter",
      {.strategies = masked_scatter, .infer = masked_scatter_sizes});
  // The sizes of the output, or the source of each element, depend on values,
  // so these ops run on full tensors.
  table.add(
      "masked_select nonzero nonzero_static repeat_interleave "
      "masked_scatter_backward _unsafe_masked_index "
      "_unsafe_masked_index_put_accumulate",
      {});
}

} // namespace weft::dtensor
