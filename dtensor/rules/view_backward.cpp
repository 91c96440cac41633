// Rules of the backward forms of views of a part, and of ops that write to such
// a part: the rest of the result is zeros or self. Also diagonals, forward and
// backward.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"
#include "dtensor/rules/view_dims.h"

namespace weft::dtensor {
namespace {

using rules::ViewDim;
using rules::ViewDims;

std::vector<OutputMeta> given_sizes(const OpCall& call) {
  return {rules::contiguous(call.arguments[1].toIntVector())};
}

// Returns the strategies of an op with one input, whose dims are `dims`. Every
// reduction preserves the zeros around the input.
std::vector<Strategy> around(
    const OpCall& call,
    const StrategyContext& context,
    const ViewDims& dims) {
  auto strategies = rules::follow_dims(
      call,
      context,
      call.tensors[0].sizes(),
      context.outputs.at(0).sizes,
      dims);
  rules::add_pending(
      strategies, call, rules::every_reduction(), {"grad_output"});
  return strategies;
}

std::vector<Strategy> select_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  auto dims = rules::kept_dims(ndim);
  dims.insert(dims.begin() + call.dim_argument(2, ndim + 1), ViewDim());
  return around(call, context, dims);
}

std::vector<Strategy> slice_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  auto dims = rules::kept_dims(ndim);
  dims[call.dim_argument(2, ndim)] = ViewDim();
  return around(call, context, dims);
}

// unfold_backward(grad_in, input_sizes, dim, size, step): `dim` may be sharded
// if the windows are adjacent and each rank has some, because the op rejects a
// tensor shorter than a window.
std::vector<Strategy> unfold_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& out = context.outputs.at(0).sizes;
  const auto ndim = static_cast<int64_t>(out.size());
  auto dims = rules::kept_dims(ndim);
  if (ndim > 0) {
    const int64_t dim = call.dim_argument(2, ndim);
    const int64_t size = call.arguments[3].toInt();
    const int64_t windows = call.tensors[0].sizes()[dim];
    const auto& spec = call.tensors[0].spec;
    const bool beside = size > 0 && size == call.arguments[4].toInt() &&
                        windows * size == out[dim] &&
                        windows % context.all_shards == 0 &&
                        (!spec || spec->is_chunked());
    if (!beside) {
      dims[dim] = ViewDim();
    }
  }
  auto strategies =
      rules::follow_dims(call, context, call.tensors[0].sizes(), out, dims);
  rules::add_pending(
      strategies, call, rules::linear_reductions(call), {"grad_in"});
  return strategies;
}

// select_scatter(self, src, dim, index): `src` has no `dim`.
std::vector<Strategy> select_scatter(
    const OpCall& call,
    const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const auto names =
      rules::with_full(rules::all_dims(ndim), call.dim_argument(2, ndim));
  auto part = names;
  part.erase(call.dim_argument(2, ndim), 1);
  auto strategies =
      rules::cut_named_dims(call, {{"self", names}, {"src", part}}, {names});
  rules::add_pending(
      strategies, call, rules::every_reduction(), {"self", "src"});
  return strategies;
}

std::vector<Strategy> slice_scatter(
    const OpCall& call,
    const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const auto names =
      rules::with_full(rules::all_dims(ndim), call.dim_argument(2, ndim));
  auto strategies =
      rules::cut_named_dims(call, {{"self", names}, {"src", names}}, {names});
  rules::add_pending(
      strategies, call, rules::every_reduction(), {"self", "src"});
  return strategies;
}

// --- diagonals --------------------------------------------------------------

// The dims of a matrix and the offset of its diagonal, which is the last dim of
// another tensor.
struct Diagonal {
  int64_t offset;
  int64_t row;
  int64_t column;
  size_t offset_argument;

  Diagonal(const OpCall& call, int64_t ndim) {
    offset_argument =
        static_cast<size_t>(rules::argument_position(call, "offset"));
    offset = call.arguments[offset_argument].toInt();
    row = call.dim_argument(offset_argument + 1, ndim);
    column = call.dim_argument(offset_argument + 2, ndim);
  }

  // Returns `row` or `column` if the diagonal has an element in each row or
  // each column, so that a shard of that dim is a shard of the diagonal.
  // Otherwise returns -1.
  int64_t crossed(c10::IntArrayRef matrix) const {
    const int64_t rows = matrix[row];
    const int64_t columns = matrix[column];
    if (offset >= 0 && columns - offset >= rows) {
      return row;
    }
    return offset <= 0 && rows + offset >= columns ? column : -1;
  }

  // Returns the argument `offset` of the local call: the diagonal relative to
  // the local block of the matrix.
  Rule::LocalArguments seen_from(const LocalBox& box) const {
    return {{offset_argument, offset + box.offset[row] - box.offset[column]}};
  }
};

// Returns the names of the dims of the matrix and of its diagonal. A row or
// column dim that must be replicated is '.'.
std::pair<std::string, std::string> diagonal_names(
    const Diagonal& diagonal,
    c10::IntArrayRef matrix) {
  auto names = rules::all_dims(static_cast<int64_t>(matrix.size()));
  std::string elements;
  for (int64_t d = 0; d < static_cast<int64_t>(names.size()); ++d) {
    if (d != diagonal.row && d != diagonal.column) {
      elements += names[d];
    }
  }
  const int64_t crossed = diagonal.crossed(matrix);
  elements += crossed < 0 ? '.' : names[crossed];
  for (const int64_t d : {diagonal.row, diagonal.column}) {
    if (d != crossed) {
      names[d] = '.';
    }
  }
  return {names, elements};
}

std::vector<Strategy> diagonal(const OpCall& call, const StrategyContext&) {
  const auto matrix = call.tensors[0].sizes();
  const auto [names, elements] =
      diagonal_names(Diagonal(call, call.tensors[0].dim()), matrix);
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {elements});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<Strategy> diagonal_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& matrix = context.outputs.at(0).sizes;
  const auto [names, elements] = diagonal_names(
      Diagonal(call, static_cast<int64_t>(matrix.size())), matrix);
  auto strategies =
      rules::cut_named_dims(call, {{"grad_output", elements}}, {names});
  rules::add_pending(
      strategies, call, rules::every_reduction(), {"grad_output"});
  return strategies;
}

std::vector<Strategy> diagonal_scatter(
    const OpCall& call,
    const StrategyContext&) {
  const auto matrix = call.tensors[0].sizes();
  const auto [names, elements] =
      diagonal_names(Diagonal(call, call.tensors[0].dim()), matrix);
  auto strategies = rules::cut_named_dims(
      call, {{"self", names}, {"src", elements}}, {names});
  rules::add_pending(
      strategies, call, rules::every_reduction(), {"self", "src"});
  return strategies;
}

Rule::LocalArguments local_diagonal(const LocalCall& local) {
  const Diagonal diagonal(local.call, local.call.tensors[0].dim());
  return diagonal.seen_from(local.inputs.at(0));
}

Rule::LocalArguments local_diagonal_backward(const LocalCall& local) {
  const auto& box = local.outputs.at(0);
  const Diagonal diagonal(local.call, static_cast<int64_t>(box.sizes.size()));
  auto arguments = diagonal.seen_from(box);
  arguments.emplace_back(1, box.sizes);
  return arguments;
}

} // namespace

void add_view_backward_rules(RuleTable& table) {
  table.add(
      "select_backward",
      {.strategies = select_backward,
       .infer = given_sizes,
       .localize = rules::part_sizes});
  table.add(
      "slice_backward",
      {.strategies = slice_backward,
       .infer = given_sizes,
       .localize = rules::part_sizes});
  table.add(
      "unfold_backward",
      {.strategies = unfold_backward,
       .infer = given_sizes,
       .localize = rules::part_sizes});
  table.add("select_scatter", {.strategies = select_scatter});
  table.add("slice_scatter", {.strategies = slice_scatter});
  table.add(
      "diagonal",
      {.strategies = diagonal, .localize = local_diagonal, .view = true});
  table.add(
      "diagonal_copy", {.strategies = diagonal, .localize = local_diagonal});
  table.add(
      "diagonal_backward",
      {.strategies = diagonal_backward,
       .infer = given_sizes,
       .localize = local_diagonal_backward});
  table.add(
      "diagonal_scatter",
      {.strategies = diagonal_scatter, .localize = local_diagonal});
}

} // namespace weft::dtensor
