// Shape suffixes: S rows of all groups, E groups, I input, O output features.

#include "dtensor/fused/grouped_mm.h"

#include <array>
#include <numeric>
#include <utility>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include "dtensor/tensor/graph_nodes.h"
#include "matmul/library.h"

namespace weft::dtensor {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

template <class Visit, class VisitEmpty>
void for_each_group(
    const GroupCounts& counts,
    const Visit& visit,
    const VisitEmpty& visit_empty) {
  int64_t first = 0;
  for (int64_t group = 0; group < std::ssize(counts); ++group) {
    const int64_t rows = counts[group];
    if (rows > 0) {
      visit(group, first, rows);
    } else {
      visit_empty(group);
    }
    first += rows;
  }
}

// Note [Rows in chunks]
// ~~~~~~~~~~~~~~~~~~~~~
// The number of rows of a group differs in each step, and oneDNN compiles a
// kernel for each shape, which takes 0.5 ms. So oneDNN gets the rows in chunks
// of a few sizes. One more call multiplies the remaining rows. They are fewer
// than the smallest chunk, so that they have few shapes.
constexpr std::array<int64_t, 3> kChunks{256, 64, 16};

template <class Visit>
void for_each_chunk(int64_t rows, const Visit& visit) {
  int64_t first = 0;
  if (matmul::library() == matmul::Library::kOneDnn) {
    for (const int64_t chunk : kChunks) {
      for (; rows - first >= chunk; first += chunk) {
        visit(first, chunk);
      }
    }
  }
  if (first < rows) {
    visit(first, rows - first);
  }
}

// Computes out = a b. multiply_transposed() computes out = a^T b.
void multiply_rows(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b) {
  for_each_chunk(a.size(0), [&](int64_t first, int64_t rows) {
    auto part = out.narrow(0, first, rows);
    at::mm_out(part, a.narrow(0, first, rows), b);
  });
}

void multiply_transposed(
    at::Tensor out,
    const at::Tensor& a,
    const at::Tensor& b) {
  if (out.scalar_type() != at::kFloat) {
    // Chunks would be added up in `out`, and rounded to its dtype each time.
    at::mm_out(out, a.t(), b);
    return;
  }
  for_each_chunk(a.size(0), [&](int64_t first, int64_t rows) {
    const auto left = a.narrow(0, first, rows).t();
    const auto right = b.narrow(0, first, rows);
    if (first == 0) {
      at::mm_out(out, left, right);
    } else {
      out.addmm_(left, right);
    }
  });
}

at::Tensor grouped_mm_below(
    const at::Tensor& rows_SI,
    const at::Tensor& matrices_EIO,
    const GroupCounts& counts) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto result_SO =
      at::empty({rows_SI.size(0), matrices_EIO.size(2)}, rows_SI.options());
  for_each_group(
      counts,
      [&](int64_t group, int64_t first, int64_t rows) {
        multiply_rows(
            result_SO.narrow(0, first, rows),
            rows_SI.narrow(0, first, rows),
            matrices_EIO.select(0, group));
      },
      [](int64_t) {});
  return result_SO;
}

// Returns for each group the product left^T right of its rows, [E, I, O], with
// the strides of `like`.
at::Tensor grouped_outer_below(
    const at::Tensor& left_SI,
    const at::Tensor& right_SO,
    const GroupCounts& counts,
    const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto result_EIO = at::empty_like(like);
  for_each_group(
      counts,
      [&](int64_t group, int64_t first, int64_t rows) {
        multiply_transposed(
            result_EIO.select(0, group),
            left_SI.narrow(0, first, rows),
            right_SO.narrow(0, first, rows));
      },
      [&](int64_t group) { result_EIO.select(0, group).zero_(); });
  return result_EIO;
}

at::Tensor grouped_outer(
    const at::Tensor& left_SI,
    const at::Tensor& right_SO,
    const GroupCounts& counts,
    const at::Tensor& like);

// A node of a product with two operands. The gradients of a product a b are g
// b^T and a^T g, those of a^T b are b g^T and a g.
struct GroupedNode : torch::autograd::Node {
  SavedVariable first;
  SavedVariable second;
  GroupCounts counts;

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    first.reset_data();
    second.reset_data();
  }
};

struct GroupedMmBackward final : GroupedNode {
  std::string name() const override { return "GroupedMmBackward"; }

  variable_list apply(variable_list&& grads) override {
    variable_list results(2);
    if (!grads[0].defined()) {
      return results;
    }
    const std::lock_guard lock(mutex_);
    const auto matrices = second.unpack();
    if (task_should_compute_output(0)) {
      results[0] = grouped_mm(grads[0], matrices.transpose(1, 2), counts);
    }
    if (task_should_compute_output(1)) {
      results[1] = grouped_outer(first.unpack(), grads[0], counts, matrices);
    }
    return results;
  }
};

struct GroupedOuterBackward final : GroupedNode {
  std::string name() const override { return "GroupedOuterBackward"; }

  variable_list apply(variable_list&& grads) override {
    variable_list results(2);
    if (!grads[0].defined()) {
      return results;
    }
    const std::lock_guard lock(mutex_);
    if (task_should_compute_output(0)) {
      results[0] =
          grouped_mm(second.unpack(), grads[0].transpose(1, 2), counts);
    }
    if (task_should_compute_output(1)) {
      results[1] = grouped_mm(first.unpack(), grads[0], counts);
    }
    return results;
  }
};

template <class GraphNode>
void record_grouped(
    const at::Tensor& first,
    const at::Tensor& second,
    const GroupCounts& counts,
    at::Tensor& output) {
  if (!records_graph(first) && !records_graph(second)) {
    return;
  }
  auto [pointer, node] = make_node<GraphNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(first, second));
  node->first = SavedVariable(first, /*is_output=*/false);
  node->second = SavedVariable(second, /*is_output=*/false);
  node->counts = counts;
  torch::autograd::create_gradient_edge(output, std::move(pointer));
}

at::Tensor grouped_outer(
    const at::Tensor& left_SI,
    const at::Tensor& right_SO,
    const GroupCounts& counts,
    const at::Tensor& like) {
  auto output = grouped_outer_below(left_SI, right_SO, counts, like);
  record_grouped<GroupedOuterBackward>(left_SI, right_SO, counts, output);
  return output;
}

} // namespace

at::Tensor grouped_mm(
    const at::Tensor& rows,
    const at::Tensor& matrices,
    const GroupCounts& counts) {
  TORCH_CHECK_VALUE(
      rows.dim() == 2 && matrices.dim() == 3 &&
          rows.size(1) == matrices.size(1) &&
          matrices.size(0) == std::ssize(counts) &&
          rows.size(0) ==
              std::accumulate(counts.begin(), counts.end(), int64_t{0}),
      "[grouped_mm] rows [S, I], matrices [E, I, O] == counts [E] of sum S: "
      "rows ",
      rows.sizes(),
      ", matrices ",
      matrices.sizes(),
      " vs counts ",
      counts,
      ".");
  auto output = grouped_mm_below(rows, matrices, counts);
  record_grouped<GroupedMmBackward>(rows, matrices, counts, output);
  return output;
}

} // namespace weft::dtensor
