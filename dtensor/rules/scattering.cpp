// Rules of ops that read or write at indices along one dim. Another dim may be
// sharded if all tensors have it in the same size. The indices may be sharded
// for reads, and for writes if elements at one index are reduced.

#include <algorithm>
#include <optional>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

// The letter that names the dim of the indices.
constexpr char kIndex = 'Z';

std::string shared_dims(
    const std::vector<const TensorArgument*>& tensors,
    int64_t dim) {
  const int64_t ndim = tensors[0]->dim();
  auto names = rules::all_dims(ndim);
  for (int64_t d = 0; d < ndim; ++d) {
    const bool shared = std::ranges::all_of(tensors, [&](const auto* tensor) {
      return tensor->dim() == ndim &&
             tensor->sizes()[d] == tensors[0]->sizes()[d];
    });
    if (d == dim || !shared) {
      names[d] = '.';
    }
  }
  return names;
}

std::string with_index(std::string names, int64_t dim) {
  if (dim < static_cast<int64_t>(names.size())) {
    names[dim] = kIndex;
  }
  return names;
}

int64_t indexed_dim(const OpCall& call) {
  return call.tensors[0].dim() == 0
             ? 0
             : call.dim_argument(1, call.tensors[0].dim());
}

// --- picking ----------------------------------------------------------------

std::vector<Strategy> gather(const OpCall& call, const StrategyContext&) {
  const int64_t dim = indexed_dim(call);
  std::vector<Strategy> strategies;
  const auto& self = call.tensors[0];
  const auto& index = call.tensors[1];
  if (self.dim() == index.dim()) {
    const auto names = shared_dims({&self, &index}, dim);
    const auto places = with_index(names, dim);
    strategies = rules::cut_named_dims(
        call, {{"self", names}, {"index", places}}, {places});
  }
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<Strategy> index_select(const OpCall& call, const StrategyContext&) {
  const int64_t dim = indexed_dim(call);
  const auto names =
      rules::with_full(rules::all_dims(call.tensors[0].dim()), dim);
  const bool list = call.tensors[1].dim() == 1 && call.tensors[0].dim() > 0;
  auto strategies = rules::cut_named_dims(
      call,
      {{"self", names},
       {"index", list ? std::string(1, kIndex) : std::string()}},
      {list ? with_index(names, dim) : names});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<OutputMeta> index_select_sizes(const OpCall& call) {
  auto sizes = call.tensors[0].sizes().vec();
  if (!sizes.empty()) {
    sizes[indexed_dim(call)] = call.tensors[1].tensor.numel();
  }
  return {rules::contiguous(std::move(sizes))};
}

// --- placing ----------------------------------------------------------------

enum class ScatterReduceOp : uint8_t {
  kReplace,
  kAdd,
  kMultiply,
  kMean,
  kMax,
  kMin
};

ScatterReduceOp scatter_reduce_op_of(const OpCall& call) {
  const auto name = call.name();
  if (name.starts_with("aten::scatter_add") ||
      name.starts_with("aten::index_add")) {
    return ScatterReduceOp::kAdd;
  }
  const auto reduce = rules::argument(call, "reduce");
  if (!reduce.isString()) {
    return ScatterReduceOp::kReplace;
  }
  const auto& text = reduce.toStringRef();
  return text == "add" || text == "sum"         ? ScatterReduceOp::kAdd
         : text == "multiply" || text == "prod" ? ScatterReduceOp::kMultiply
         : text == "mean"                       ? ScatterReduceOp::kMean
         : text == "amax"                       ? ScatterReduceOp::kMax
                                                : ScatterReduceOp::kMin;
}

std::optional<ReduceOp> reduction_of(ScatterReduceOp meeting) {
  switch (meeting) {
    case ScatterReduceOp::kAdd:
      return ReduceOp::kSum;
    case ScatterReduceOp::kMultiply:
      return ReduceOp::kProduct;
    case ScatterReduceOp::kMax:
      return ReduceOp::kMax;
    case ScatterReduceOp::kMin:
      return ReduceOp::kMin;
    default:
      return std::nullopt;
  }
}

bool includes_self(const OpCall& call) {
  const auto include = rules::argument(call, "include_self");
  return !include.isBool() || include.toBool();
}

// Adds strategies with self and source Partial together, and with only one of
// them Partial.
void add_scatter_reduce(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::string_view source) {
  const auto meeting = scatter_reduce_op_of(call);
  const auto linear = rules::linear_reductions(call);
  const bool floats = linear.size() > 1;
  rules::Reductions both;
  rules::Reductions either;
  switch (meeting) {
    case ScatterReduceOp::kReplace:
      both = rules::every_reduction();
      either = rules::reductions_keeping(c10::IValue());
      break;
    case ScatterReduceOp::kAdd:
      both = linear;
      if (floats && includes_self(call)) {
        either = {ReduceOp::kAvg};
      }
      break;
    case ScatterReduceOp::kMean:
      if (floats) {
        both = linear;
      }
      break;
    case ScatterReduceOp::kMultiply:
      both = {ReduceOp::kProduct};
      break;
    default:
      both = either = {*reduction_of(meeting)};
  }
  rules::add_pending(strategies, call, both, {"self", source});
  rules::add_pending(strategies, call, either, {"self"});
  rules::add_pending(strategies, call, either, {source});
  if (meeting == ScatterReduceOp::kMultiply && includes_self(call)) {
    rules::add_pending(strategies, call, linear, {"self"});
  }
}

// Adds `cut`, a strategy that shards the source, with a Partial self: each rank
// writes its shard of the source into its own term of self.
void add_cut_source(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const Strategy& cut) {
  const auto op = reduction_of(scatter_reduce_op_of(call));
  if (!op || !includes_self(call)) {
    return;
  }
  auto strategy = cut;
  strategy.outputs = {Partial(*op)};
  strategy.inputs[0] = Partial(*op);
  strategies.push_back(std::move(strategy));
}

// scatter(self, dim, index, src): a dim other than `dim` may be sharded if all
// three tensors have the same size in it.
std::vector<Strategy> scatter_source(const OpCall& call) {
  const int64_t dim = indexed_dim(call);
  const auto& self = call.tensors[0];
  const auto& index = call.tensors[1];
  const auto& source = call.tensors[2];
  const auto names = shared_dims({&self, &index, &source}, dim);
  auto strategies = rules::cut_named_dims(
      call, {{"self", names}, {"index", names}, {"src", names}}, {names});
  const bool beside = self.dim() > 0 && index.sizes() == source.sizes() &&
                      index.dim() == self.dim();
  if (beside) {
    add_cut_source(
        strategies, call, {{}, {Replicate(), Shard(dim), Shard(dim)}});
  }
  add_scatter_reduce(strategies, call, "src");
  return strategies;
}

// scatter with a number instead of a source. A number that is added commutes
// with min and max.
std::vector<Strategy> scatter_number(const OpCall& call) {
  const int64_t dim = indexed_dim(call);
  const auto& index = call.tensors[1];
  const auto names = shared_dims({&call.tensors[0], &index}, dim);
  auto strategies =
      rules::cut_named_dims(call, {{"self", names}, {"index", names}}, {names});
  const auto linear = rules::linear_reductions(call);
  const auto meeting = scatter_reduce_op_of(call);
  if (index.dim() > 0 && index.dim() == call.tensors[0].dim()) {
    add_cut_source(strategies, call, {{}, {Replicate(), Shard(dim)}});
  }
  rules::Reductions kept = linear;
  if (meeting == ScatterReduceOp::kReplace) {
    kept = rules::reductions_keeping(rules::argument(call, "value"));
  } else if (meeting == ScatterReduceOp::kAdd) {
    // Unsigned integers can wrap, which changes their order.
    const auto dtype = call.tensors[0].tensor.scalar_type();
    const bool can_wrap = c10::isIntegralType(dtype, /*includeBool=*/false) &&
                          !c10::isSignedType(dtype);
    kept = can_wrap ? rules::Reductions{}
                    : rules::Reductions{ReduceOp::kMin, ReduceOp::kMax};
    if (linear.size() > 1) {
      kept.push_back(ReduceOp::kAvg);
    }
  }
  rules::add_pending(strategies, call, kept, {"self"});
  return strategies;
}

std::vector<Strategy> scatter(const OpCall& call, const StrategyContext&) {
  return call.tensors.size() > 2 ? scatter_source(call) : scatter_number(call);
}

// Returns true if the kernel fails on shards of one element: libtorch's
// index_reduce does for products in half precision.
bool asserts_on_single_elements(const OpCall& call) {
  return call.name().starts_with("aten::index_reduce") &&
         scatter_reduce_op_of(call) == ScatterReduceOp::kMultiply &&
         c10::isReducedFloatingType(call.tensors[0].tensor.scalar_type());
}

// index_add(self, dim, index, source): each row of `source` is combined with
// the row of self at its index.
std::vector<Strategy> index_rows(const OpCall& call, const StrategyContext&) {
  const int64_t dim = indexed_dim(call);
  const auto& self = call.tensors[0];
  const auto& source = call.tensors[2];
  std::vector<Strategy> strategies;
  if (self.dim() > 0 && source.dim() == self.dim()) {
    auto names = shared_dims({&self, &source}, dim);
    if (asserts_on_single_elements(call)) {
      names.assign(names.size(), '.');
    }
    strategies = rules::cut_named_dims(
        call, {{"self", names}, {"source", names}}, {names});
    if (call.tensors[1].dim() == 1) {
      add_cut_source(
          strategies, call, {{}, {Replicate(), Shard(0), Shard(dim)}});
    }
  }
  add_scatter_reduce(strategies, call, "source");
  return strategies;
}

// index_fill(self, dim, index, value).
std::vector<Strategy> index_fill(const OpCall& call, const StrategyContext&) {
  const auto names = rules::with_full(
      rules::all_dims(call.tensors[0].dim()), indexed_dim(call));
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  if (call.arguments[3].isTensor()) {
    add_scatter_reduce(strategies, call, "value");
  } else {
    rules::add_pending(
        strategies,
        call,
        rules::reductions_keeping(call.arguments[3]),
        {"self"});
  }
  return strategies;
}

} // namespace

void add_scattering_rules(RuleTable& table) {
  table.add("gather", {.strategies = gather});
  table.add(
      "index_select",
      {.strategies = index_select, .infer = index_select_sizes});
  table.add("scatter scatter_add scatter_reduce", {.strategies = scatter});
  table.add("index_add index_copy index_reduce", {.strategies = index_rows});
  table.add("index_fill", {.strategies = index_fill});
}

} // namespace weft::dtensor
