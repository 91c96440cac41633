// Rules of ops that look numbers up or count them. Ops whose output sizes
// depend on the values run on full tensors.

#include "dtensor/rules/named_dims.h"

namespace weft::dtensor {
namespace {

using rules::tensor_argument;

// The result is the number of boundaries below each number, so sharded
// boundaries give a Partial sum. Boundaries of one dim serve every number;
// boundaries of more dims have one row per row of numbers.
std::vector<Strategy> look_up(const OpCall& call, const StrategyContext&) {
  const auto* self = tensor_argument(call, "self");
  const auto* sequence = tensor_argument(call, "sorted_sequence");
  sequence = sequence ? sequence : tensor_argument(call, "boundaries");
  const auto names = rules::all_dims(self ? self->dim() : 0);
  const auto rows = rules::all_dims(sequence->dim() - 1);
  const bool sorted = tensor_argument(call, "sorter") == nullptr;
  return rules::cut_named_dims(
      call,
      {{"self", names},
       {"sorted_sequence", rows + (sorted ? "S" : ".")},
       {"boundaries", rows + "S"},
       {"sorter", rows + "."}},
      {"+" + names});
}

std::vector<OutputMeta> look_up_sizes(const OpCall& call) {
  const auto* self = tensor_argument(call, "self");
  return {self ? rules::contiguous(self->sizes().vec()) : OutputMeta{}};
}

// --- counts -----------------------------------------------------------------

Strategy count_part(const OpCall& call, int64_t d, size_t outputs) {
  Strategy strategy{Placements(outputs, Replicate()), {}};
  strategy.outputs[0] = Partial();
  for (const auto& tensor : call.tensors) {
    const auto& name = call.op.schema().arguments()[tensor.argument].name();
    strategy.inputs.push_back(
        name == "self" || name == "weight" ? Shard(d) : Replicate());
  }
  return strategy;
}

// The counts of shards add up, unless `density` divides them by their sum.
std::vector<Strategy>
count_over(const OpCall& call, int64_t dims, const StrategyContext& context) {
  std::vector<Strategy> strategies;
  const auto density = rules::argument(call, "density");
  if (!density.isBool() || !density.toBool()) {
    for (int64_t d = 0; d < dims; ++d) {
      strategies.push_back(count_part(call, d, context.outputs.size()));
    }
  }
  return strategies;
}

// Equal values of `min` and `max` stand for the limits of the data, which no
// single rank knows.
std::vector<Strategy> histc(
    const OpCall& call,
    const StrategyContext& context) {
  const double min = rules::argument(call, "min").toScalar().toDouble();
  const double max = rules::argument(call, "max").toScalar().toDouble();
  return min == max ? std::vector<Strategy>()
                    : count_over(call, call.tensors[0].dim(), context);
}

bool has_range(const OpCall& call) {
  const auto range = rules::argument(call, "range");
  if (!range.isDoubleList()) {
    return false;
  }
  const auto limits = range.toDoubleVector();
  for (size_t i = 0; i + 1 < limits.size(); i += 2) {
    if (limits[i] == limits[i + 1]) {
      return false;
    }
  }
  return limits.size() >= 2;
}

std::vector<Strategy> histogram(
    const OpCall& call,
    const StrategyContext& context) {
  if (!tensor_argument(call, "bins") && !has_range(call)) {
    return {};
  }
  return count_over(call, call.tensors[0].dim(), context);
}

// The input is [..., D], with D coordinates per point. Only the other dims may
// be sharded.
std::vector<Strategy> histogramdd(
    const OpCall& call,
    const StrategyContext& context) {
  if (rules::argument(call, "bins").isIntList() && !has_range(call)) {
    return {};
  }
  return count_over(call, call.tensors[0].dim() - 1, context);
}

std::vector<OutputMeta> histc_sizes(const OpCall& call) {
  return {rules::contiguous({rules::argument(call, "bins").toInt()})};
}

std::vector<OutputMeta> histogram_sizes(const OpCall& call) {
  if (const auto* bins = tensor_argument(call, "bins")) {
    return {
        rules::contiguous({bins->sizes()[0] - 1}),
        rules::contiguous({bins->sizes()[0]})};
  }
  const int64_t bins = rules::argument(call, "bins").toInt();
  return {rules::contiguous({bins}), rules::contiguous({bins + 1})};
}

std::vector<OutputMeta> histogramdd_sizes(const OpCall& call) {
  const auto bins = rules::argument(call, "bins");
  if (bins.isIntList()) {
    return {rules::contiguous(bins.toIntVector())};
  }
  std::vector<int64_t> sizes;
  for (const at::Tensor& edges : bins.toTensorVector()) {
    sizes.push_back(edges.numel() - 1);
  }
  return {rules::contiguous(sizes)};
}

// --- segments ---------------------------------------------------------------

// Segments are along `axis`, which must be replicated. `lengths` and `offsets`
// also have the dims of `data` before `axis`.
std::string segment_names(const OpCall& call) {
  const auto& data = *tensor_argument(call, "data");
  const int64_t at = rules::argument_position(call, "axis");
  return rules::with_full(
      rules::all_dims(data.dim()), call.dim_argument(at, data.dim()));
}

std::vector<Strategy> segment_reduce(
    const OpCall& call,
    const StrategyContext&) {
  const auto names = segment_names(call);
  rules::NamedDims inputs{{"data", names}, {"grad", names}, {"output", names}};
  for (const auto* name : {"lengths", "offsets"}) {
    if (const auto* tensor = tensor_argument(call, name)) {
      inputs.emplace_back(name, names.substr(0, tensor->dim()));
    }
  }
  return rules::cut_named_dims(call, inputs, {names});
}

std::vector<OutputMeta> segment_sizes(const OpCall& call) {
  const auto& data = *tensor_argument(call, "data");
  if (tensor_argument(call, "grad")) {
    return {rules::contiguous(data.sizes().vec())};
  }
  const int64_t at = rules::argument_position(call, "axis");
  const int64_t axis = call.dim_argument(at, data.dim());
  auto sizes = data.sizes().vec();
  if (const auto* lengths = tensor_argument(call, "lengths")) {
    sizes[axis] = lengths->sizes()[axis];
  } else if (const auto* offsets = tensor_argument(call, "offsets")) {
    sizes[axis] = offsets->sizes()[axis] - 1;
  }
  return {rules::contiguous(sizes)};
}

} // namespace

void add_search_rules(RuleTable& table) {
  table.add(
      "searchsorted bucketize",
      {.strategies = look_up, .infer = look_up_sizes});
  table.add("histc", {.strategies = histc, .infer = histc_sizes});
  table.add("histogram", {.strategies = histogram, .infer = histogram_sizes});
  table.add(
      "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
      {.strategies = histogramdd, .infer = histogramdd_sizes});
  table.add(
      "segment_reduce _segment_reduce_backward",
      {.strategies = segment_reduce, .infer = segment_sizes});
  table.add(
      "bincount _histogramdd_bin_edges _unique _unique2 unique_dim "
      "unique_consecutive unique_dim_consecutive allclose",
      {});
}

} // namespace weft::dtensor
