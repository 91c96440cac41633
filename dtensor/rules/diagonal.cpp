// Ops that put numbers on the diagonal of matrices, or add them up there.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"

namespace weft::dtensor {
namespace {

// Elements are moved, and zeros put around them, which all reductions of zeros
// give: any pending one may wait.
void carry_all(std::vector<Strategy>& strategies) {
  for (const auto op : rules::every_reduction()) {
    strategies.push_back({{Partial(op)}, {Partial(op)}});
  }
}

// The last dim becomes two; the others keep their order around them.
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

// A rank's rows do not hold the diagonal where the op looks for it.
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
