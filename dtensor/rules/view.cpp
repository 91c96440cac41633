// Rules of ops that return the same elements with another shape: a shard
// follows its dim. The _copy forms have the same rules and return new memory.

#include <algorithm>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"
#include "dtensor/rules/view_dims.h"

namespace weft::dtensor {
namespace {

using rules::ViewDim;
using rules::ViewDims;

using Describe = ViewDims (*)(const OpCall&, const StrategyContext&);

// Shards follow the dims that `describe` returns, and every reduction commutes
// with the op.
template <Describe describe>
std::vector<Strategy> follow(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = rules::follow_dims(
      call,
      context,
      call.tensors[0].sizes(),
      context.outputs.at(0).sizes,
      describe(call, context));
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

ViewDims same_dims(const OpCall& call, const StrategyContext&) {
  return rules::kept_dims(call.tensors[0].dim());
}

ViewDims reshape_dims(const OpCall& call, const StrategyContext& context) {
  return rules::reshaped_dims(
      call.tensors[0].sizes(), context.outputs.at(0).sizes);
}

ViewDims transpose_dims(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  auto dims = rules::kept_dims(ndim);
  const bool is_t = rules::argument_position(call, "dim0") < 0;
  if (!is_t && ndim > 0) {
    std::swap(
        dims.at(call.dim_argument(1, ndim)),
        dims.at(call.dim_argument(2, ndim)));
  } else if (ndim == 2) {
    std::swap(dims[0], dims[1]);
  }
  return dims;
}

ViewDims permute_dims(const OpCall& call, const StrategyContext&) {
  ViewDims dims;
  for (const int64_t dim : call.dims_argument(1, call.tensors[0].dim())) {
    dims.push_back({{dim}});
  }
  return dims;
}

// A dim of size 1 that becomes longer is broadcast, so it has no input dim.
ViewDims expand_dims(const OpCall& call, const StrategyContext& context) {
  const auto in = call.tensors[0].sizes();
  const auto& out = context.outputs.at(0).sizes;
  const size_t added = out.size() - in.size();
  ViewDims dims(out.size());
  for (size_t d = 0; d < in.size(); ++d) {
    if (in[d] == out[added + d]) {
      dims[added + d].inputs = {static_cast<int64_t>(d)};
    }
  }
  return dims;
}

ViewDims unsqueeze_dims(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  auto dims = rules::kept_dims(ndim);
  dims.insert(dims.begin() + call.dim_argument(1, ndim + 1), ViewDim());
  return dims;
}

// The `dim` argument of squeeze, squeeze.dim and squeeze.dims. The op removes
// the dims of size 1 among those, or all dims of size 1 if there is no
// argument.
struct Squeeze {
  const c10::IValue dim;

  explicit Squeeze(const OpCall& call) : dim(rules::argument(call, "dim")) {}

  bool takes(const OpCall& call, int64_t d) const {
    if (dim.isNone()) {
      return true;
    }
    const auto dims = call.dims_argument(1, call.tensors[0].dim());
    return std::ranges::find(dims, d) != dims.end();
  }
  // The local op would also remove a dim that has size 1 only on this rank.
  // With squeeze.dims the local call names the dims to remove; with the other
  // forms a dim that may be removed cannot be sharded.
  bool may_cut(const OpCall& call, int64_t d) const {
    return dim.isIntList() || !takes(call, d);
  }
};

ViewDims squeeze_dims(const OpCall& call, const StrategyContext&) {
  const Squeeze squeeze(call);
  const auto sizes = call.tensors[0].sizes();
  ViewDims dims;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (sizes[d] != 1 || !squeeze.takes(call, d)) {
      dims.push_back(squeeze.may_cut(call, d) ? ViewDim{{d}} : ViewDim());
    }
  }
  return dims;
}

Rule::LocalArguments squeezed_dims(const LocalCall& local) {
  const auto& call = local.call;
  if (!rules::argument(call, "dim").isIntList()) {
    return {};
  }
  const auto sizes = call.tensors[0].sizes();
  std::vector<int64_t> dims;
  for (const int64_t d : call.dims_argument(1, call.tensors[0].dim())) {
    if (!sizes.empty() && sizes[d] == 1) {
      dims.push_back(d);
    }
  }
  return {{1, dims}};
}

ViewDims select_dims(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  return rules::without_dim(ndim, call.dim_argument(1, ndim));
}

// Every dim except `dim` may be sharded. `dim` may be sharded, too, if a slice
// takes all of its rows.
ViewDims part_of(const OpCall& call, const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  auto dims = rules::kept_dims(ndim);
  const int64_t dim = rules::argument(call, "dim").toInt() +
                      (rules::argument(call, "dim").toInt() < 0 ? ndim : 0);
  const bool whole =
      call.name().starts_with("aten::slice") &&
      call.tensors[0].sizes()[dim] == context.outputs.at(0).sizes[dim];
  if (!whole) {
    dims[dim] = ViewDim();
  }
  return dims;
}

// unfold(dim, size, step) returns the windows of `dim`, with the rows of a
// window as a new last dim. `dim` may be sharded if the windows are adjacent
// and each rank has some, because the op rejects a tensor shorter than a
// window.
ViewDims window_dims(const OpCall& call, const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  if (ndim == 0) {
    return {ViewDim()};
  }
  const int64_t dim = call.dim_argument(1, ndim);
  const int64_t size = call.arguments[2].toInt();
  auto dims = rules::kept_dims(ndim);
  const int64_t windows = context.outputs.at(0).sizes[dim];
  const auto& spec = call.tensors[0].spec;
  const bool splits = size > 0 && size == call.arguments[3].toInt() &&
                      call.tensors[0].sizes()[dim] == windows * size &&
                      windows % context.all_shards == 0 &&
                      (!spec || spec->is_chunked());
  if (!splits) {
    dims[dim] = ViewDim();
  }
  dims.emplace_back();
  return dims;
}

ViewDims repeated_dims(const OpCall& call, const StrategyContext&) {
  const auto repeats = call.arguments[1].toIntVector();
  const size_t added = repeats.size() - call.tensors[0].sizes().size();
  ViewDims dims(repeats.size());
  for (size_t d = added; d < repeats.size(); ++d) {
    if (repeats[d] == 1) {
      dims[d].inputs = {static_cast<int64_t>(d - added)};
    }
  }
  return dims;
}

std::vector<OutputMeta> repeated_sizes(const OpCall& call) {
  auto sizes = call.arguments[1].toIntVector();
  const auto in = call.tensors[0].sizes();
  for (size_t d = 0; d < in.size(); ++d) {
    sizes[sizes.size() - in.size() + d] *= in[d];
  }
  return {rules::contiguous(std::move(sizes))};
}

// The ops conjugate, negate, or convert between complex numbers and a last dim
// of size 2. They are linear, but do not all commute with min, max and product.
std::vector<Strategy> complex_parts(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& out = context.outputs.at(0).sizes;
  const auto ndim = std::min<int64_t>(
      call.tensors[0].dim(), static_cast<int64_t>(out.size()));
  auto strategies = rules::follow_dims(
      call, context, call.tensors[0].sizes(), out, rules::kept_dims(ndim));
  rules::add_pending(
      strategies, call, rules::linear_reductions(call), {"self"});
  return strategies;
}

// view.dtype keeps the bytes, so the last dim may change its size. Equal shards
// of it all grow alike. A dim that shrinks cannot be sharded, because the
// memory layout of a shard may not allow it.
std::vector<Strategy> reinterpreted(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& out = context.outputs.at(0).sizes;
  const auto from = call.tensors[0].sizes();
  const bool same = from == c10::IntArrayRef(out);
  const auto last = static_cast<int64_t>(out.size()) - 1;
  auto strategies = rules::follow_dims(
      call, context, from, out, rules::kept_dims(last + (same ? 1 : 0)));
  if (!same && from[last] < out[last] && rules::divides(from[last], context)) {
    strategies.push_back({{Shard(last)}, {Shard(last)}, /*chunked_only=*/true});
  }
  return strategies;
}

void add_both(
    RuleTable& table,
    std::string_view views,
    std::string_view copies,
    Rule rule) {
  rule.view = true;
  table.add(views, rule);
  rule.view = false;
  table.add(copies, rule);
}

void add_shape_rules(RuleTable& table) {
  add_both(
      table,
      "view _unsafe_view",
      "view_copy _reshape_copy",
      {.strategies = follow<reshape_dims>,
       .localize = rules::part_sizes,
       .reshapes = true});
  add_both(
      table, "view.dtype", "view_copy.dtype", {.strategies = reinterpreted});
  add_both(
      table,
      "expand",
      "expand_copy",
      {.strategies = follow<expand_dims>, .localize = rules::part_sizes});
  add_both(
      table,
      "transpose.int t",
      "transpose_copy t_copy",
      {.strategies = follow<transpose_dims>});
  add_both(
      table, "permute", "permute_copy", {.strategies = follow<permute_dims>});
  add_both(
      table,
      "unsqueeze",
      "unsqueeze_copy",
      {.strategies = follow<unsqueeze_dims>});
  add_both(
      table,
      "squeeze",
      "squeeze_copy",
      {.strategies = follow<squeeze_dims>, .localize = squeezed_dims});
  table.add(
      "repeat", {.strategies = follow<repeated_dims>, .infer = repeated_sizes});
}

void add_part_rules(RuleTable& table) {
  add_both(
      table,
      "select unbind",
      "select_copy unbind_copy",
      {.strategies = follow<select_dims>});
  add_both(
      table,
      "slice split split_with_sizes",
      "slice_copy split_copy split_with_sizes_copy unsafe_split "
      "unsafe_split_with_sizes narrow_copy",
      {.strategies = follow<part_of>});
  add_both(table, "unfold", "unfold_copy", {.strategies = follow<window_dims>});
}

} // namespace

void add_view_rules(RuleTable& table) {
  add_shape_rules(table);
  add_part_rules(table);
  add_both(
      table,
      "alias detach lift_fresh",
      "alias_copy detach_copy lift",
      {.strategies = follow<same_dims>});
  add_both(
      table,
      "view_as_real view_as_complex _conj _neg_view",
      "view_as_real_copy view_as_complex_copy _conj_copy _neg_view_copy",
      {.strategies = complex_parts});
}

} // namespace weft::dtensor
