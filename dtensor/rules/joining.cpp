// Rules of ops that join, roll or rotate tensors. The dims whose order an op
// keeps may be sharded, and every reduction commutes with the op.

#include <algorithm>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"
#include "dtensor/rules/view_dims.h"

namespace weft::dtensor {
namespace {

// Returns true if torch.cat skips the tensor: one of sizes [0] among tensors
// with another number of dims.
bool is_left_out(const TensorArgument& tensor, int64_t ndim) {
  return ndim != 1 && tensor.dim() == 1 && tensor.sizes()[0] == 0;
}

std::vector<Strategy> cat(const OpCall& call, const StrategyContext& context) {
  const auto ndim = static_cast<int64_t>(context.outputs.at(0).sizes.size());
  const int64_t joined = call.dim_argument(1, ndim);
  std::vector<Strategy> strategies;
  const auto add = [&](const Placement& placement) {
    Strategy strategy{{placement}, {}};
    for (const auto& tensor : call.tensors) {
      strategy.inputs.push_back(
          is_left_out(tensor, ndim) ? Replicate() : placement);
    }
    strategies.push_back(std::move(strategy));
  };
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != joined) {
      add(Shard(d));
    }
  }
  for (const auto op : rules::every_reduction()) {
    add(Partial(op));
  }
  return strategies;
}

std::vector<Strategy> stack(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors.at(0).dim();
  const auto names = rules::all_dims(ndim);
  auto output = names;
  output.insert(call.dim_argument(1, ndim + 1), 1, '.');
  auto strategies = rules::cut_named_dims(call, {{"tensors", names}}, {output});
  rules::add_pending(strategies, call, rules::every_reduction(), {"tensors"});
  return strategies;
}

// libtorch's meta kernel of _stack.out returns sizes without the new dim.
std::vector<OutputMeta> stack_sizes(const OpCall& call) {
  auto sizes = call.tensors.at(0).sizes().vec();
  const auto ndim = static_cast<int64_t>(sizes.size());
  sizes.insert(
      sizes.begin() + call.dim_argument(1, ndim + 1),
      static_cast<int64_t>(call.tensors.size()));
  return {rules::contiguous(std::move(sizes))};
}

// The op moves the blocks and puts zeros around them, which every reduction
// preserves.
std::vector<Strategy> block_diag(const OpCall& call, const StrategyContext&) {
  std::vector<Strategy> strategies;
  rules::add_pending(strategies, call, rules::every_reduction(), {"tensors"});
  return strategies;
}

// _chunk_cat(tensors, dim, num_chunks) pads `dim` of each tensor with zeros to
// num_chunks equal chunks, flattens the dims from there on, and joins the
// tensors. It rejects empty tensors.
std::vector<Strategy> chunk_cat(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t dim = call.dim_argument(1, call.tensors.at(0).dim());
  auto names = rules::all_dims(dim);
  for (int64_t d = 0; d < dim; ++d) {
    if (!rules::never_empty(call.tensors[0].sizes()[d], call, context)) {
      names[d] = '.';
    }
  }
  auto strategies = rules::cut_named_dims(call, {{"tensors", names}}, {names});
  for (auto& strategy : strategies) {
    strategy.chunked_only = true;
  }
  rules::add_pending(strategies, call, rules::every_reduction(), {"tensors"});
  return strategies;
}

// --- rolling and turning ----------------------------------------------------

// roll(self, shifts, dims): an empty `dims` rolls the flattened tensor, which
// cannot be sharded.
std::vector<Strategy> roll(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const auto dims = call.dims_argument(2, ndim);
  auto names = dims.empty() ? std::string() : rules::all_dims(ndim);
  for (const int64_t d : dims) {
    names = rules::with_full(names, d);
  }
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<OutputMeta> row_major_like(const OpCall& call) {
  return {rules::contiguous(call.tensors[0].sizes().vec())};
}

int64_t quarter_turns(const OpCall& call) {
  return (call.arguments[1].toInt() % 4 + 4) % 4;
}

// A quarter turn swaps two dims and reverses one of them. The other one may be
// sharded, because its rows stay in order.
std::vector<Strategy> rot90(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const auto dims = call.dims_argument(2, ndim);
  const auto all = rules::all_dims(ndim);
  const int64_t turns = quarter_turns(call);
  auto from = all;
  auto to = all;
  if (turns != 0) {
    from[dims[0]] = from[dims[1]] = '.';
    to = from;
  }
  if (turns % 2 == 1) {
    const int64_t kept = dims[turns == 1 ? 0 : 1];
    from[kept] = all[kept];
    to[dims[turns == 1 ? 1 : 0]] = all[kept];
  }
  auto strategies = rules::cut_named_dims(call, {{"self", from}}, {to});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<OutputMeta> rot90_sizes(const OpCall& call) {
  const auto dims = call.dims_argument(2, call.tensors[0].dim());
  const int64_t turns = quarter_turns(call);
  if (turns == 0) {
    return row_major_like(call);
  }
  auto meta = rules::like(call.tensors[0]);
  if (turns % 2 == 1) {
    std::swap(meta.sizes[dims[0]], meta.sizes[dims[1]]);
    std::swap(meta.strides[dims[0]], meta.strides[dims[1]]);
  }
  return {meta};
}

// --- triangles --------------------------------------------------------------

// Any dim may be sharded. local_triangle() moves the diagonal by the offset of
// the local block.
std::vector<Strategy> triangle(const OpCall& call, const StrategyContext&) {
  const auto names = rules::all_dims(call.tensors[0].dim());
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

Rule::LocalArguments local_triangle(const LocalCall& local) {
  const auto& offset = local.inputs.at(0).offset;
  const size_t row = offset.size() - 2;
  return {{1, local.call.arguments[1].toInt() + offset[row] - offset[row + 1]}};
}

} // namespace

void add_joining_rules(RuleTable& table) {
  table.add("cat", {.strategies = cat});
  table.add("stack", {.strategies = stack});
  table.add("_stack", {.strategies = stack, .infer = stack_sizes});
  table.add("block_diag", {.strategies = block_diag});
  table.add("_chunk_cat", {.strategies = chunk_cat});
  table.add("roll", {.strategies = roll, .infer = row_major_like});
  table.add("rot90", {.strategies = rot90, .infer = rot90_sizes});
  table.add("tril triu", {.strategies = triangle, .localize = local_triangle});
}

} // namespace weft::dtensor
