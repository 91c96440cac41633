// Rules of ops that work along one dim: softmax, scans, sorting. That dim must
// be replicated; the other dims may be sharded.
#include <algorithm>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"

namespace weft::dtensor {
namespace {

std::vector<int64_t> whole_dims(const OpCall& call) {
  const int64_t ndim = call.tensors[0].dim();
  for (const auto* name : {"dim", "dims"}) {
    if (const int64_t at = rules::argument_position(call, name); at >= 0) {
      if (!call.arguments[at].isNone()) {
        return call.dims_argument(at, ndim);
      }
    }
  }
  return {};
}

std::vector<Strategy> along_dim(const OpCall& call, const StrategyContext&) {
  const auto& first = call.tensors[0];
  auto names = rules::all_dims(first.dim());
  for (const int64_t d : whole_dims(call)) {
    names = rules::with_full(names, d);
  }
  rules::NamedDims inputs;
  for (const auto& tensor : call.tensors) {
    inputs.emplace_back(
        call.op.schema().arguments()[tensor.argument].name(),
        rules::broadcast_dims(tensor.sizes(), first.sizes(), names));
  }
  return rules::cut_named_dims(call, inputs, {names});
}

bool keeps_fractions(const OpCall& call) {
  const auto dtype = rules::argument(call, "dtype");
  return !dtype.isInt() ||
         !c10::isIntegralType(dtype.toScalarType(), /*includeBool=*/true);
}

std::vector<Strategy> linear_along_dim(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = along_dim(call, context);
  if (keeps_fractions(call)) {
    rules::add_linear(strategies, call, {"self", "grad_output"});
  }
  return strategies;
}

// flip only moves elements, so every reduction commutes with it.
std::vector<Strategy> permuted(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = along_dim(call, context);
  for (const auto op : rules::every_reduction()) {
    strategies.push_back({{Partial(op)}, {Partial(op)}});
  }
  return strategies;
}

// The norm of each slice along `dim` needs the full slice, so only `dim` itself
// can be sharded.
std::vector<Strategy> renorm(const OpCall& call, const StrategyContext&) {
  const int64_t at = rules::argument_position(call, "dim");
  const int64_t d = call.dim_argument(at, call.tensors[0].dim());
  return {{{Shard(d)}, {Shard(d)}}};
}

std::vector<OutputMeta> contiguous_as_first(const OpCall& call) {
  return {
      call.op.schema().returns().size(),
      rules::contiguous(call.tensors[0].sizes().vec())};
}

// For attention weights [B, heads, T, T], samples and heads may be sharded. The
// mask is [B, T] for mask type 1, otherwise [T, T].
std::vector<Strategy> masked_softmax_rows(const OpCall& call, int64_t type) {
  const auto dim = rules::argument(call, "dim");
  if (call.tensors[0].dim() != 4 ||
      (!dim.isNone() && call.dim_argument(2, 4) != 3)) {
    return {};
  }
  return rules::cut_named_dims(
      call, {{"self", "bh.."}, {"mask", type == 1 ? "b." : ".."}}, {"bh.."});
}

// The mask of _masked_softmax is [B, T], [T, T] or has the sizes of the input.
// Sizes alone are ambiguous if B = T, so the mask type decides.
std::vector<Strategy> masked_softmax(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& mask = *rules::tensor_argument(call, "mask");
  const auto type = rules::argument(call, "mask_type");
  if (mask.sizes() != call.tensors[0].sizes()) {
    return type.isInt() ? masked_softmax_rows(call, type.toInt())
                        : std::vector<Strategy>();
  }
  if (type.isInt() && type.toInt() != 2) {
    return {};
  }
  auto strategies = along_dim(call, context);
  if (rules::argument(call, "dim").isNone()) {
    std::erase_if(strategies, [&](const Strategy& strategy) {
      return strategy.outputs[0].is_shard(call.tensors[0].dim() - 1);
    });
  }
  return strategies;
}

} // namespace

void add_along_dim_rules(RuleTable& table) {
  table.add(
      "_softmax _log_softmax cumprod sort topk", {.strategies = along_dim});
  table.add(
      "_softmax_backward_data _log_softmax_backward_data cumsum",
      {.strategies = linear_along_dim});
  table.add(
      "_safe_softmax cummax cummin logcumsumexp _logcumsumexp",
      {.strategies = along_dim, .infer = contiguous_as_first});
  table.add(
      "_masked_softmax",
      {.strategies = masked_softmax, .infer = rules::like_first});
  table.add(
      "_masked_softmax_backward",
      {.strategies = masked_softmax, .infer = contiguous_as_first});
  table.add("renorm", {.strategies = renorm});
  table.add("flip", {.strategies = permuted, .infer = rules::like_first});
}

// Rules of ops that write or sum the diagonals of matrices.

namespace {

// diag_embed moves elements and puts zeros around them. Every reduction of
// zeros is zero, so all reductions commute with the op.
void carry_all(std::vector<Strategy>& strategies) {
  for (const auto op : rules::every_reduction()) {
    strategies.push_back({{Partial(op)}, {Partial(op)}});
  }
}

std::vector<Strategy> diag_embed(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim() + 1;
  const auto batch = rules::all_dims(ndim - 2);
  const int64_t first = rules::argument_position(call, "dim1");
  const int64_t second = rules::argument_position(call, "dim2");
  std::string output;
  size_t next = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    const bool made = d == call.dim_argument(first, ndim) ||
                      d == call.dim_argument(second, ndim);
    output += made ? '.' : batch[next++];
  }
  auto strategies =
      rules::cut_named_dims(call, {{"self", batch + "."}}, {output});
  carry_all(strategies);
  return strategies;
}

// No dim can be sharded, because the diagonal of a shard is in general not part
// of the full matrix's diagonal.
std::vector<Strategy> trace(const OpCall& call, const StrategyContext&) {
  std::vector<Strategy> strategies;
  rules::add_linear(strategies, call, {"self"});
  return strategies;
}

} // namespace

void add_diagonal_rules(RuleTable& table) {
  table.add("diag_embed", {.strategies = diag_embed});
  table.add("trace", {.strategies = trace, .infer = rules::one_number});
}

} // namespace weft::dtensor
