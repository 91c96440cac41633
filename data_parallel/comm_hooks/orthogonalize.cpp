#include "data_parallel/comm_hooks/orthogonalize.h"

#include <torch/torch.h>

namespace weft::data_parallel {
namespace {

/// The smallest norm that a column is divided by. The square of a norm that is
/// ten times smaller underflows in float32.
constexpr double kMinNorm = 1e-18;

/// Makes `columns` orthogonal to a unit vector. Shapes: [b, n, k], [b, n, 1].
void remove_projection(const at::Tensor& columns, const at::Tensor& unit) {
  at::Tensor(columns).sub_(
      at::sum(unit * columns, {1}, /*keepdim=*/true) * unit);
}

void orthogonalize_gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    auto column = matrices.narrow(2, i, 1);
    auto norm = at::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true);
    // PyTorch divides by a norm of 0 here, which makes the gradients of an
    // unused parameter NaN.
    column.div_(epsilon > 0 ? norm.add_(epsilon) : norm.clamp_min_(kMinNorm));
    // Projects the column again. If it was parallel to an earlier column, only
    // rounding errors are left of it, and they may be parallel to that column,
    // too. Gradients with equal rows would come out doubled.
    for (int64_t k = 0; k < i; ++k) {
      remove_projection(column, matrices.narrow(2, k, 1));
    }
    if (i + 1 < columns) {
      remove_projection(matrices.narrow(2, i + 1, columns - i - 1), column);
    }
  }
}

} // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  if (matrices.size(2) <= 2) {
    orthogonalize_gram_schmidt(matrices, epsilon);
  } else {
    at::Tensor(matrices).copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

} // namespace weft::data_parallel
