// Stubs for a build without nvcc. Their callers then compute on the CPU or with
// libtorch's kernels.
#include "cuda/tensor_kernels.h"

namespace weft::cuda {

bool reduce_rows(const at::Tensor&, const at::Tensor&, mesh::ReduceOp) {
  return false;
}

bool fill_random(const at::Tensor&, const mesh::RandomFill&) {
  return false;
}

bool swiglu(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return false;
}

bool swiglu_backward(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&) {
  return false;
}

bool rotary_embedding(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    bool) {
  return false;
}

bool class_statistics(const at::Tensor&, const mesh::ClassLogits&) {
  return false;
}

bool class_gradient(
    const at::Tensor&,
    const mesh::ClassLogits&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&) {
  return false;
}

} // namespace weft::cuda
