#include "cuda/tensor_kernels.h"

#include <optional>

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/kernels.h"

namespace weft::cuda {
namespace {

std::optional<Dtype> kernel_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Dtype::kFloat;
    case at::kDouble:
      return Dtype::kDouble;
    case at::kHalf:
      return Dtype::kHalf;
    case at::kBFloat16:
      return Dtype::kBFloat16;
    default:
      return std::nullopt;
  }
}

// They are compiled for 8.0 and later, see cmake/FindWeftCuda.cmake.
bool has_kernels(const at::Tensor& tensor) {
  constexpr int kOldest = 8;
  return at::cuda::getDeviceProperties(tensor.device().index())->major >=
         kOldest;
}

cudaStream_t stream_of(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index());
}

} // namespace

bool reduce_rows(
    const at::Tensor& output,
    const at::Tensor& parts,
    mesh::ReduceOp op) {
  const auto dtype = kernel_dtype(output);
  const bool is_sum = op == mesh::ReduceOp::kSum || op == mesh::ReduceOp::kAvg;
  if (!dtype || !is_sum || !output.is_contiguous() || !parts.is_contiguous() ||
      !has_kernels(output)) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(output.device());
  C10_CUDA_CHECK(sum_rows(
      output.mutable_data_ptr(),
      parts.const_data_ptr(),
      *dtype,
      parts.size(0),
      output.numel(),
      op == mesh::ReduceOp::kAvg,
      stream_of(output)));
  return true;
}

bool fill_random(const at::Tensor& local, const mesh::RandomFill& fill) {
  const auto dtype = kernel_dtype(local);
  if (!dtype || local.dim() > Box::kMaxDims || !local.is_contiguous() ||
      !has_kernels(local)) {
    return false;
  }
  Box box;
  box.ndim = static_cast<int>(local.dim());
  int64_t stride = 1;
  for (int d = box.ndim - 1; d >= 0; --d) {
    box.sizes[d] = local.size(d);
    box.offset[d] = fill.offset[d];
    box.strides[d] = stride;
    stride *= fill.global_sizes[d];
  }
  const c10::cuda::CUDAGuard guard(local.device());
  C10_CUDA_CHECK(fill_random(
      local.mutable_data_ptr(),
      *dtype,
      box,
      {.seed = fill.seed,
       .stream = fill.stream,
       .is_normal = fill.is_normal,
       .shift = fill.shift,
       .scale = fill.scale},
      stream_of(local)));
  return true;
}

} // namespace weft::cuda
