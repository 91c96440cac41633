// Rules of linear algebra on batches of matrices. Batch dims and the columns of
// right-hand sides may be sharded; matrices must be replicated.

#include <map>

#include "dtensor/rules/named_dims.h"

namespace weft::dtensor {
namespace {

// The names of the arguments, and the number of trailing dims of each argument
// and each output that are not batch dims.
struct Matrices {
  std::vector<std::pair<std::string_view, int64_t>> inputs;
  std::vector<int64_t> outputs;
};

std::vector<int64_t> batch_of(const OpCall& call, const Matrices& matrices) {
  std::vector<int64_t> batch;
  for (const auto& [name, dims] : matrices.inputs) {
    if (const auto* tensor = rules::tensor_argument(call, name)) {
      const auto sizes = tensor->sizes();
      batch = rules::broadcast_sizes(
          batch,
          sizes.slice(0, sizes.size() - std::min<size_t>(dims, sizes.size())));
    }
  }
  return batch;
}

std::string
matrix_names(c10::IntArrayRef sizes, c10::IntArrayRef batch, std::string core) {
  const auto names = rules::all_dims(static_cast<int64_t>(batch.size()));
  return rules::broadcast_dims(
             sizes.slice(0, sizes.size() - core.size()), batch, names) +
         core;
}

rules::NamedDims input_names(
    const OpCall& call,
    const Matrices& matrices,
    c10::IntArrayRef batch) {
  rules::NamedDims inputs;
  for (const auto& [name, dims] : matrices.inputs) {
    if (const auto* tensor = rules::tensor_argument(call, name)) {
      inputs.emplace_back(
          name, matrix_names(tensor->sizes(), batch, std::string(dims, '.')));
    }
  }
  return inputs;
}

// An output that was not requested has one dim of size 0 and stays replicated.
std::vector<std::string> output_names(
    const StrategyContext& context,
    const Matrices& matrices,
    c10::IntArrayRef batch) {
  std::vector<std::string> outputs;
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    const c10::IntArrayRef sizes = context.outputs[i].sizes;
    const auto dims = static_cast<size_t>(matrices.outputs.at(i));
    outputs.push_back(
        sizes.size() == batch.size() + dims
            ? matrix_names(sizes, batch, std::string(dims, '.'))
            : "");
  }
  return outputs;
}

Rule::Strategies batched(const Matrices& matrices) {
  return [matrices](const OpCall& call, const StrategyContext& context) {
    const auto batch = batch_of(call, matrices);
    return rules::cut_named_dims(
        call,
        input_names(call, matrices, batch),
        output_names(context, matrices, batch));
  };
}

// --- equations --------------------------------------------------------------

bool is_left(const OpCall& call) {
  const auto left = rules::argument(call, "left");
  return !left.isBool() || left.toBool();
}

// Each column of B is a separate equation (each row if X is left of the
// matrix), and the solution is linear in B.
Rule::Strategies solved(const Matrices& matrices, std::string_view columns) {
  return [=](const OpCall& call, const StrategyContext& context) {
    const auto batch = batch_of(call, matrices);
    auto inputs = input_names(call, matrices, batch);
    auto outputs = output_names(context, matrices, batch);
    const size_t at = is_left(call) ? 1 : 2;
    for (auto& [name, dims] : inputs) {
      if (name == columns) {
        dims[dims.size() - at] = 'X';
      }
    }
    outputs[0][outputs[0].size() - at] = 'X';
    auto strategies = rules::cut_named_dims(call, inputs, outputs);
    std::vector<bool> follows(outputs.size(), false);
    follows[0] = true;
    rules::add_linear(strategies, call, {columns}, follows);
    return strategies;
  };
}

// Returns true if B of linalg.solve is a batch of vectors: it has one dim, or
// the sizes of A without the last.
bool solves_vectors(const OpCall& call) {
  const auto a = rules::tensor_argument(call, "A")->sizes();
  const auto b = rules::tensor_argument(call, "B")->sizes();
  return b.size() == 1 ||
         (a.size() == b.size() + 1 && b == a.slice(0, b.size()));
}

std::vector<Strategy> solve_ex(
    const OpCall& call,
    const StrategyContext& context) {
  if (!solves_vectors(call)) {
    return solved({{{"A", 2}, {"B", 2}}, {2, 2, 1, 0}}, "B")(call, context);
  }
  auto strategies =
      batched({{{"A", 2}, {"B", 1}}, {1, 2, 1, 0}})(call, context);
  rules::add_linear(strategies, call, {"B"}, {true, false, false, false});
  return strategies;
}

// --- sizes of what has no meta kernel ---------------------------------------

std::vector<int64_t>
with_batch(c10::IntArrayRef batch, c10::IntArrayRef sizes, size_t dims) {
  auto result = batch.vec();
  result.insert(result.end(), sizes.end() - dims, sizes.end());
  return result;
}

OutputMeta column_major(const std::vector<int64_t>& sizes) {
  OutputMeta meta = rules::contiguous(sizes);
  const size_t ndim = sizes.size();
  if (ndim >= 2) {
    meta.strides[ndim - 2] = 1;
    meta.strides[ndim - 1] = std::max<int64_t>(sizes[ndim - 2], 1);
  }
  return meta;
}

Rule::Infer solution_sizes(const Matrices& matrices, std::string_view columns) {
  return [=](const OpCall& call) -> std::vector<OutputMeta> {
    const auto& right = *rules::tensor_argument(call, columns);
    return {
        column_major(with_batch(batch_of(call, matrices), right.sizes(), 2))};
  };
}

std::vector<OutputMeta> column_major_like_first(const OpCall& call) {
  return {column_major(call.tensors[0].sizes().vec())};
}

std::vector<OutputMeta> contiguous_like_first(const OpCall& call) {
  return {rules::contiguous(call.tensors[0].sizes().vec())};
}

std::vector<int64_t> without_last(c10::IntArrayRef sizes) {
  return sizes.slice(0, sizes.size() - 1).vec();
}

std::vector<OutputMeta> eig_sizes(const OpCall& call) {
  const auto sizes = call.tensors[0].sizes();
  std::vector<OutputMeta> outputs{rules::contiguous(without_last(sizes))};
  if (call.op.schema().returns().size() == 2) {
    outputs.push_back(column_major(sizes.vec()));
  }
  return outputs;
}

std::vector<OutputMeta> geqrf_sizes(const OpCall& call) {
  const auto sizes = call.tensors[0].sizes();
  auto tau = sizes.slice(0, sizes.size() - 2).vec();
  tau.push_back(std::min(sizes[sizes.size() - 2], sizes.back()));
  return {column_major(sizes.vec()), rules::contiguous(tau)};
}

std::vector<OutputMeta> ormqr_sizes(const OpCall& call) {
  return {column_major(rules::tensor_argument(call, "input3")->sizes().vec())};
}

std::vector<OutputMeta> pinv_sizes(const OpCall& call) {
  auto sizes = call.tensors[0].sizes().vec();
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  return {rules::contiguous(sizes)};
}

// --- families ---------------------------------------------------------------

void add_factorizations(RuleTable& table) {
  const auto add = [&](std::string_view names, const Matrices& matrices) {
    table.add(names, {.strategies = batched(matrices)});
  };
  add("_linalg_det", {{{"A", 2}}, {0, 2, 1}});
  add("_linalg_slogdet", {{{"A", 2}}, {0, 0, 2, 1}});
  add("_linalg_eigh", {{{"A", 2}}, {1, 2}});
  add("_linalg_svd", {{{"A", 2}}, {2, 1, 2}});
  add("linalg_cholesky_ex", {{{"self", 2}}, {2, 0}});
  add("linalg_inv_ex", {{{"A", 2}}, {2, 0}});
  add("linalg_ldl_factor_ex", {{{"self", 2}}, {2, 1, 0}});
  add("linalg_lu", {{{"A", 2}}, {2, 2, 2}});
  add("linalg_lu_factor_ex", {{{"A", 2}}, {2, 1, 0}});
  add("linalg_qr", {{{"A", 2}}, {2, 2}});
  add("linalg_polar", {{{"A", 2}}, {2, 2}});
  add("lu_unpack", {{{"LU_data", 2}, {"LU_pivots", 1}}, {2, 2, 2}});
  table.add(
      "linalg_eig",
      {.strategies = batched({{{"self", 2}}, {1, 2}}), .infer = eig_sizes});
  table.add(
      "_linalg_eigvals",
      {.strategies = batched({{{"self", 2}}, {1}}), .infer = eig_sizes});
  table.add(
      "geqrf",
      {.strategies = batched({{{"self", 2}}, {2, 1}}), .infer = geqrf_sizes});
}

void add_functions(RuleTable& table) {
  const Matrices one{{{"self", 2}}, {2}};
  table.add(
      "linalg_matrix_exp linalg_matrix_sqrth",
      {.strategies = batched(one), .infer = contiguous_like_first});
  table.add(
      "cholesky_inverse",
      {.strategies = batched(one), .infer = column_major_like_first});
  table.add(
      "linalg_householder_product",
      {.strategies = batched({{{"input", 2}, {"tau", 1}}, {2}}),
       .infer = column_major_like_first});
  table.add(
      "linalg_pinv",
      {.strategies = batched({{{"self", 2}, {"atol", 0}, {"rtol", 0}}, {2}}),
       .infer = pinv_sizes});
}

void add_equations(RuleTable& table) {
  table.add("_linalg_solve_ex", {.strategies = solve_ex});
  table.add(
      "linalg_lu_solve",
      {.strategies = solved({{{"LU", 2}, {"pivots", 1}, {"B", 2}}, {2}}, "B")});
  table.add(
      "linalg_ldl_solve",
      {.strategies = solved({{{"LD", 2}, {"pivots", 1}, {"B", 2}}, {2}}, "B")});
  table.add(
      "triangular_solve",
      {.strategies = solved({{{"self", 2}, {"A", 2}}, {2, 2}}, "self")});
  table.add(
      "ormqr",
      {.strategies =
           solved({{{"self", 2}, {"input2", 1}, {"input3", 2}}, {2}}, "input3"),
       .infer = ormqr_sizes});
  const Matrices triangular{{{"self", 2}, {"B", 2}}, {2}};
  table.add(
      "linalg_solve_triangular",
      {.strategies = solved(triangular, "B"),
       .infer = solution_sizes(triangular, "B")});
  const Matrices cholesky{{{"self", 2}, {"input2", 2}}, {2}};
  table.add(
      "cholesky_solve",
      {.strategies = solved(cholesky, "self"),
       .infer = solution_sizes(cholesky, "self")});
  const Matrices helper{{{"self", 2}, {"A", 2}}, {2}};
  table.add(
      "_cholesky_solve_helper",
      {.strategies = solved(helper, "self"),
       .infer = solution_sizes(helper, "self")});
}

// --- products and distances -------------------------------------------------

std::vector<Strategy> cross(const OpCall& call, const StrategyContext&) {
  const auto& self = call.tensors[0];
  const auto& other = call.tensors[1];
  const auto sizes = rules::broadcast_sizes(self.sizes(), other.sizes());
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t at = rules::argument_position(call, "dim");
  const auto names = rules::with_full(
      rules::all_dims(ndim), call.dim_argument(at, self.dim()));
  auto strategies = rules::cut_named_dims(
      call,
      {{"self", rules::broadcast_dims(self.sizes(), sizes, names)},
       {"other", rules::broadcast_dims(other.sizes(), sizes, names)}},
      {names});
  rules::add_linear(strategies, call, {"self"});
  rules::add_linear(strategies, call, {"other"});
  return strategies;
}

// cdist returns the distances between the rows of x1 and of x2. For p = 1 a
// distance is the sum of the shards' distances, so the columns may be sharded.
std::vector<Strategy> cdist(const OpCall& call, const StrategyContext&) {
  const Matrices matrices{{{"x1", 2}, {"x2", 2}}, {2}};
  const auto batch = batch_of(call, matrices);
  const auto names = rules::all_dims(static_cast<int64_t>(batch.size()));
  const auto order = rules::argument(call, "p");
  const bool adds = order.isDouble() && order.toDouble() == 1;
  const std::string column = adds ? "M" : ".";
  return rules::cut_named_dims(
      call,
      {{"x1", matrix_names(call.tensors[0].sizes(), batch, "P" + column)},
       {"x2", matrix_names(call.tensors[1].sizes(), batch, "R" + column)}},
      {"+" + names + "PR"});
}

std::vector<OutputMeta> cdist_sizes(const OpCall& call) {
  auto sizes = batch_of(call, {{{"x1", 2}, {"x2", 2}}, {2}});
  for (const auto& tensor : call.tensors) {
    sizes.push_back(tensor.sizes()[tensor.dim() - 2]);
  }
  return {rules::contiguous(sizes)};
}

std::vector<Strategy> cdist_backward(
    const OpCall& call,
    const StrategyContext&) {
  const auto& x1 = *rules::tensor_argument(call, "x1");
  const auto& x2 = *rules::tensor_argument(call, "x2");
  const auto batch = x1.sizes().slice(0, x1.dim() - 2);
  std::vector<Strategy> strategies;
  if (batch == x2.sizes().slice(0, x2.dim() - 2)) {
    const auto names = rules::all_dims(x1.dim() - 2);
    strategies = rules::cut_named_dims(
        call,
        {{"grad_output", names + "PR"},
         {"x1", names + "P."},
         {"x2", names + "R."},
         {"cdist", names + "PR"}},
        {"+" + names + "P."});
  }
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

// The gradient has the sizes of x1 with broadcast batch dims. Autograd sums
// over the broadcast dims.
std::vector<OutputMeta> cdist_backward_sizes(const OpCall& call) {
  const Matrices matrices{{{"x1", 2}, {"x2", 2}}, {2}};
  return {rules::contiguous(with_batch(
      batch_of(call, matrices),
      rules::tensor_argument(call, "x1")->sizes(),
      2))};
}

} // namespace

void add_linalg_rules(RuleTable& table) {
  add_factorizations(table);
  add_functions(table);
  add_equations(table);
  table.add("linalg_cross", {.strategies = cross});
  table.add(
      "_cdist_forward _euclidean_dist",
      {.strategies = cdist, .infer = cdist_sizes});
  table.add(
      "_cdist_backward",
      {.strategies = cdist_backward, .infer = cdist_backward_sizes});
  // _pdist compares all pairs of rows, and the sizes of the results of lstsq
  // depend on the rank of the matrix.
  table.add("_pdist_forward _pdist_backward linalg_lstsq", {});
  // Every rank checks the full tensor, so that all ranks throw the same error.
  table.add("_linalg_check_errors", {});
  table.add("_compute_linear_combination", {});
}

} // namespace weft::dtensor
