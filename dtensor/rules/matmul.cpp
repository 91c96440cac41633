// Rules of matrix products. The rows of the left factor, the columns of the
// right factor, the batch dims, or the inner dim of both may be sharded. A
// sharded inner dim gives a Partial sum.

#include <algorithm>
#include <ranges>
#include <set>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

using rules::NamedDims;

// The arguments of a product, and the names of the dims of its factors and its
// result. See Note [Dims by name].
struct Product {
  std::string_view left;
  std::string left_dims;
  std::string_view right;
  std::string right_dims;
  std::string result;
};

Product product_of(const OpCall& call) {
  const auto name = call.name();
  const auto is = [&](std::string_view op) {
    return name == op ||
           (name.ends_with('_') && name.substr(0, name.size() - 1) == op);
  };
  if (is("aten::bmm")) {
    return {"self", "bmk", "mat2", "bkn", "+bmn"};
  }
  if (is("aten::baddbmm")) {
    return {"batch1", "bmk", "batch2", "bkn", "+bmn"};
  }
  if (is("aten::addbmm")) {
    return {"batch1", "bmk", "batch2", "bkn", "+mn"};
  }
  if (is("aten::addmm")) {
    return {"mat1", "mk", "mat2", "kn", "+mn"};
  }
  if (is("aten::addmv")) {
    return {"mat", "mk", "vec", "k", "+m"};
  }
  if (is("aten::addr")) {
    return {"vec1", "m", "vec2", "n", "+mn"};
  }
  if (is("aten::mv")) {
    return {"self", "mk", "vec", "k", "+m"};
  }
  if (is("aten::dot")) {
    return {"self", "k", "tensor", "k", "+"};
  }
  if (is("aten::vdot")) {
    return {"self", "k", "other", "k", "+"};
  }
  return {"self", "mk", "mat2", "kn", "+mn"};
}

// A product is linear in each factor, so either of them may be Partial.
std::vector<Strategy> product(const OpCall& call, const StrategyContext&) {
  const auto p = product_of(call);
  auto strategies = rules::cut_named_dims(
      call, {{p.left, p.left_dims}, {p.right, p.right_dims}}, {p.result});
  const auto linear = rules::linear_reductions(call);
  rules::add_pending(strategies, call, linear, {p.left});
  rules::add_pending(strategies, call, linear, {p.right});
  return strategies;
}

// Returns true if the kernel accepts local matrices that are empty. addmv of an
// empty matrix returns self's sizes without broadcasting them.
bool takes_empty_parts(const OpCall& call, const StrategyContext& context) {
  return !call.name().starts_with("aten::addmv") ||
         call.tensors[0].sizes() ==
             c10::IntArrayRef(context.outputs.at(0).sizes);
}

// The op is beta * self + alpha * product, with self broadcast to the output.
// If the product is a Partial sum, self must be one too. With averages a single
// argument may be Partial, because the average of a replicated term is that
// term.
std::vector<Strategy> add_product(
    const OpCall& call,
    const StrategyContext& context) {
  const auto p = product_of(call);
  const auto self = rules::broadcast_dims(
      call.tensors[0].sizes(), context.outputs.at(0).sizes, p.result.substr(1));
  auto strategies = rules::cut_named_dims(
      call,
      {{"self", self}, {p.left, p.left_dims}, {p.right, p.right_dims}},
      {p.result});
  for (auto& strategy : strategies) {
    if (strategy.outputs[0].is_partial()) {
      strategy.inputs[0] = strategy.outputs[0];
    }
  }
  if (!takes_empty_parts(call, context)) {
    std::erase_if(strategies, [&](const Strategy& strategy) {
      const auto& cut = strategy.inputs[1];
      return !rules::never_empty(
          call.tensors[1].sizes()[cut.tensor_dim()], call, context);
    });
    for (auto& strategy : strategies) {
      strategy.chunked_only = true;
    }
  }
  const auto linear = rules::linear_reductions(call);
  rules::add_pending(strategies, call, linear, {"self", p.left});
  rules::add_pending(strategies, call, linear, {"self", p.right});
  if (linear.size() > 1) {
    for (const auto argument : {std::string_view("self"), p.left, p.right}) {
      rules::add_pending(strategies, call, {ReduceOp::kAvg}, {argument});
    }
  }
  return strategies;
}

// The op is gelu or relu of an addmm, with which no sum commutes.
std::vector<Strategy> activated_product(
    const OpCall& call,
    const StrategyContext& context) {
  const auto self = rules::broadcast_dims(
      call.tensors[0].sizes(), context.outputs.at(0).sizes, "mn");
  return rules::cut_named_dims(
      call, {{"self", self}, {"mat1", "m."}, {"mat2", ".n"}}, {"mn"});
}

// Multiplies scaled fp8 matrices. The kernels need local sizes that are
// multiples of 16.
std::vector<Strategy> scaled_mm(
    const OpCall& call,
    const StrategyContext& context) {
  const auto* scale_a = rules::tensor_argument(call, "scale_a");
  const auto* scale_b = rules::tensor_argument(call, "scale_b");
  const int64_t m = call.tensors[0].sizes()[0];
  const int64_t k = call.tensors[0].sizes()[1];
  const int64_t n = call.tensors[1].sizes()[1];
  const auto out_dtype = rules::argument(call, "out_dtype");
  const auto cuttable = [&](int64_t size) {
    return rules::divides(size, context) && size / context.all_shards % 16 == 0;
  };
  const bool whole_scales =
      scale_a->tensor.numel() == 1 && scale_b->tensor.numel() == 1;
  const bool row_scales = scale_a->tensor.numel() == m &&
                          scale_b->tensor.numel() == n && scale_a->dim() == 2 &&
                          scale_b->dim() == 2;
  if (!whole_scales && !row_scales) {
    return {};
  }
  const bool sums = cuttable(k) && !rules::tensor_argument(call, "bias") &&
                    !rules::tensor_argument(call, "scale_result") &&
                    out_dtype.isInt() &&
                    !c10::isFloat8Type(out_dtype.toScalarType());
  const std::string row(1, cuttable(m) ? 'm' : '.');
  const std::string column(1, cuttable(n) ? 'n' : '.');
  const std::string inner(1, sums ? 'k' : '.');
  auto strategies = rules::cut_named_dims(
      call,
      {{"self", row + inner},
       {"mat2", inner + column},
       {"scale_a", row_scales ? row + "." : ""},
       {"scale_b", row_scales ? "." + column : ""},
       {"bias", column}},
      {"+" + row + column});
  for (auto& strategy : strategies) {
    strategy.chunked_only = true;
  }
  return strategies;
}

// Multiplies groups of matrices. `offs` divides a 2-D factor into groups of
// rows or columns, or two 2-D factors along the inner dim; a 3-D factor has one
// matrix per group. Kernels need rows of a multiple of 16 bytes.
std::vector<Strategy> grouped_mm(
    const OpCall& call,
    const StrategyContext& context) {
  const bool grouped_left = call.tensors[0].dim() == 2;
  const bool grouped_right = call.tensors[1].dim() == 2;
  const auto left = call.tensors[0].sizes();
  const auto right = call.tensors[1].sizes();
  if (rules::tensor_argument(call, "bias")) {
    return {};
  }
  const auto letter = [&](char name, int64_t size) {
    const int64_t step = 16 / call.tensors[0].tensor.element_size();
    const bool even =
        rules::divides(size, context) && size / context.all_shards % step == 0;
    return even ? name : '.';
  };
  const std::string m{letter('m', left[left.size() - 2])};
  const std::string k{letter('k', left.back())};
  const std::string n{letter('n', right.back())};
  std::vector<Strategy> strategies;
  if (grouped_left && grouped_right) {
    strategies = rules::cut_named_dims(
        call, {{"self", m + "."}, {"mat2", "." + n}}, {"." + m + n});
  } else if (grouped_left) {
    strategies = rules::cut_named_dims(
        call, {{"self", "." + k}, {"mat2", "." + k + n}}, {"+." + n});
  } else if (grouped_right) {
    strategies = rules::cut_named_dims(
        call, {{"self", "." + m + k}, {"mat2", k + "."}}, {"+" + m + "."});
  } else {
    const std::string g{rules::divides(left[0], context) ? 'g' : '.'};
    strategies = rules::cut_named_dims(
        call, {{"self", g + m + k}, {"mat2", g + k + n}}, {"+" + g + m + n});
  }
  for (auto& strategy : strategies) {
    strategy.chunked_only = true;
  }
  return strategies;
}

// The sum over `sumdim` of the product of three tensors. Each tensor first gets
// dims of size 1 at the positions of its expand list.
struct Trilinear {
  std::vector<std::string> inputs;
  std::string result;
  std::vector<int64_t> sizes;

  explicit Trilinear(const OpCall& call) {
    const auto first = call.arguments[3].toIntVector();
    const int64_t ndim =
        call.tensors[0].dim() + static_cast<int64_t>(first.size());
    const auto summed = call.dims_argument(6, ndim);
    const auto names = rules::all_dims(ndim);
    std::vector<int64_t> whole(ndim, 1);
    std::vector<std::vector<int64_t>> expanded;
    std::vector<std::set<int64_t>> added;
    for (size_t i = 0; i < 3; ++i) {
      const auto dims = call.dims_argument(3 + i, ndim);
      added.emplace_back(dims.begin(), dims.end());
      auto& own = expanded.emplace_back(call.tensors[i].sizes().vec());
      for (const int64_t d : added[i]) {
        own.insert(own.begin() + d, 1);
      }
      whole = rules::broadcast_sizes(whole, own);
    }
    for (size_t i = 0; i < 3; ++i) {
      auto own = rules::broadcast_dims(expanded[i], whole, names);
      for (const auto dim : added[i] | std::views::reverse) {
        own.erase(dim, 1);
      }
      inputs.push_back(own);
    }
    result = "+";
    for (int64_t d = 0; d < ndim; ++d) {
      if (std::ranges::find(summed, d) == summed.end()) {
        result += names[d];
        sizes.push_back(whole[d]);
      }
    }
  }
};

std::vector<Strategy> trilinear(const OpCall& call, const StrategyContext&) {
  const Trilinear t(call);
  auto strategies = rules::cut_named_dims(
      call,
      {{"i1", t.inputs[0]}, {"i2", t.inputs[1]}, {"i3", t.inputs[2]}},
      {t.result});
  for (const auto* argument : {"i1", "i2", "i3"}) {
    rules::add_pending(
        strategies, call, rules::linear_reductions(call), {argument});
  }
  return strategies;
}

// --- sizes ------------------------------------------------------------------

std::vector<OutputMeta> trilinear_sizes(const OpCall& call) {
  return {rules::contiguous(Trilinear(call).sizes)};
}

std::vector<OutputMeta> scalar(const OpCall&) {
  return {{}};
}

std::vector<OutputMeta> rows_by_columns(const OpCall& call) {
  return {rules::contiguous(
      {call.tensors[0].sizes()[0], call.tensors[1].sizes()[1]})};
}

std::vector<OutputMeta> addbmm_sizes(const OpCall& call) {
  return {rules::contiguous(
      {call.tensors[1].sizes()[1], call.tensors[2].sizes()[2]})};
}

// The kernel pads each row to a multiple of 16 bytes.
std::vector<OutputMeta> grouped_mm_sizes(const OpCall& call) {
  const auto left = call.tensors[0].sizes();
  const auto right = call.tensors[1].sizes();
  const int64_t m = left[left.size() - 2];
  const int64_t n = right.back();
  std::vector<int64_t> sizes{m, n};
  if (left.size() == right.size()) {
    const auto* offsets = rules::tensor_argument(call, "offs");
    sizes.insert(
        sizes.begin(), left.size() == 3 ? left[0] : offsets->tensor.numel());
  }
  const int64_t step = 16 / call.tensors[0].tensor.element_size();
  const int64_t row = (n + step - 1) / step * step;
  std::vector<int64_t> strides{row, 1};
  if (sizes.size() == 3) {
    strides.insert(strides.begin(), m * row);
  }
  return {{std::move(sizes), std::move(strides)}};
}

} // namespace

void add_matmul_rules(RuleTable& table) {
  table.add("mm bmm mv", {.strategies = product});
  table.add("dot vdot", {.strategies = product, .infer = scalar});
  table.add("_int_mm", {.strategies = product, .infer = rows_by_columns});
  table.add("addmm baddbmm addmv addr", {.strategies = add_product});
  table.add("addbmm", {.strategies = add_product, .infer = addbmm_sizes});
  table.add("_addmm_activation", {.strategies = activated_product});
  table.add("_scaled_mm", {.strategies = scaled_mm, .infer = rows_by_columns});
  table.add(
      "_grouped_mm", {.strategies = grouped_mm, .infer = grouped_mm_sizes});
  table.add("_trilinear", {.strategies = trilinear, .infer = trilinear_sizes});
}

} // namespace weft::dtensor
