// Where there is no nvcc: the callers compute on the CPU or with libtorch's
// kernels instead.
#include "cuda/tensor_kernels.h"

namespace weft::cuda {

bool reduce_rows(const at::Tensor&, const at::Tensor&, mesh::ReduceOp) {
  return false;
}

bool fill_random(const at::Tensor&, const mesh::RandomFill&) {
  return false;
}

} // namespace weft::cuda
