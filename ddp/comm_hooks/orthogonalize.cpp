#include "ddp/comm_hooks/orthogonalize.h"

#include <torch/torch.h>

namespace weft::ddp {
namespace {

/// Squares of values below this are no float32 any more.
constexpr double kLeastNorm = 1e-18;

void orthogonalize_gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    auto column = matrices.narrow(2, i, 1);
    auto norm = at::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true);
    // PyTorch divides by zero here: the gradients of a parameter that was not
    // used would be NaN.
    column.div_(epsilon > 0 ? norm.add_(epsilon) : norm.clamp_min_(kLeastNorm));
    if (i + 1 < columns) {
      auto rest = matrices.narrow(2, i + 1, columns - i - 1);
      rest.sub_(at::sum(column * rest, {1}, /*keepdim=*/true) * column);
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

} // namespace weft::ddp
