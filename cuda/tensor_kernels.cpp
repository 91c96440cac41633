#include "cuda/tensor_kernels.h"

#include <algorithm>
#include <initializer_list>
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

// Returns true if the tensor's GPU can run the kernels. They are compiled for
// 8.0 and later, see cmake/FindWeftCuda.cmake.
bool has_kernels(const at::Tensor& tensor) {
  constexpr int kOldest = 8;
  return at::cuda::getDeviceProperties(tensor.device().index())->major >=
         kOldest;
}

// Returns true if the tensors have one dtype, and element i of each has the
// same offset in memory.
bool are_alike(std::initializer_list<at::Tensor> tensors) {
  const auto& first = *tensors.begin();
  return first.is_non_overlapping_and_dense() && has_kernels(first) &&
         std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
           return tensor.scalar_type() == first.scalar_type() &&
                  tensor.sizes() == first.sizes() &&
                  tensor.strides() == first.strides();
         });
}

cudaStream_t stream_of(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index());
}

// Returns the arguments of the cross-entropy kernels, or nullopt if they do not
// support these tensors.
std::optional<ClassRows> class_rows(const mesh::ClassLogits& part) {
  const auto& [logits, target, first_class, classes, ignore_index] = part;
  if (logits.dim() != 2 || logits.numel() == 0 || logits.stride(1) != 1 ||
      target.scalar_type() != at::kLong || !target.is_contiguous() ||
      target.device() != logits.device() || !kernel_dtype(logits) ||
      !has_kernels(logits)) {
    return std::nullopt;
  }
  return ClassRows{
      .logits = logits.const_data_ptr(),
      .target = target.const_data_ptr<int64_t>(),
      .rows = logits.size(0),
      .columns = logits.size(1),
      .stride = logits.stride(0),
      .first_class = first_class,
      .classes = classes,
      .ignore_index = ignore_index};
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

bool swiglu(
    const at::Tensor& output,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto dtype = kernel_dtype(gate);
  if (!dtype || !are_alike({gate, up, output})) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(gate.device());
  C10_CUDA_CHECK(swiglu(
      output.mutable_data_ptr(),
      gate.const_data_ptr(),
      up.const_data_ptr(),
      *dtype,
      gate.numel(),
      stream_of(gate)));
  return true;
}

bool swiglu_backward(
    const at::Tensor& gate_grad,
    const at::Tensor& up_grad,
    const at::Tensor& grad,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto dtype = kernel_dtype(gate);
  if (!dtype || !are_alike({gate, up, grad, gate_grad, up_grad})) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(gate.device());
  C10_CUDA_CHECK(swiglu_backward(
      gate_grad.mutable_data_ptr(),
      up_grad.mutable_data_ptr(),
      grad.const_data_ptr(),
      gate.const_data_ptr(),
      up.const_data_ptr(),
      *dtype,
      gate.numel(),
      stream_of(gate)));
  return true;
}

bool rotary_embedding(
    const at::Tensor& output,
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  const auto dtype = kernel_dtype(x);
  if (!dtype || x.dim() != 4 || !has_kernels(x) || x.numel() == 0) {
    return false;
  }
  for (const auto* tensor : {&x, &output, &cos, &sin}) {
    if (tensor->stride(-1) != 1) {
      return false;
    }
  }
  Rotary call{
      .input = x.const_data_ptr(),
      .cos = cos.const_data_ptr(),
      .sin = sin.const_data_ptr(),
      .output = output.mutable_data_ptr(),
      .batch = x.size(0),
      .heads = x.size(1),
      .length = x.size(2),
      .half = x.size(3) / 2};
  for (int d = 0; d < 3; ++d) {
    call.input_strides[d] = x.stride(d);
    call.output_strides[d] = output.stride(d);
  }
  call.cos_stride = cos.stride(0);
  call.sin_stride = sin.stride(0);
  call.transposed = transposed;
  const c10::cuda::CUDAGuard guard(x.device());
  C10_CUDA_CHECK(rotary_embedding(call, *dtype, stream_of(x)));
  return true;
}

bool class_statistics(
    const at::Tensor& statistics,
    const mesh::ClassLogits& part) {
  const auto call = class_rows(part);
  if (!call || !statistics.is_contiguous()) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(part.logits.device());
  C10_CUDA_CHECK(class_statistics(
      statistics.mutable_data_ptr(),
      *call,
      *kernel_dtype(part.logits),
      stream_of(part.logits)));
  return true;
}

bool class_gradient(
    const at::Tensor& grad,
    const mesh::ClassLogits& part,
    const at::Tensor& log_sum,
    const at::Tensor& loss_grad,
    const at::Tensor& log_sum_grad) {
  const auto call = class_rows(part);
  if (!call || !grad.is_contiguous() || !log_sum.is_contiguous() ||
      (log_sum_grad.defined() && !log_sum_grad.is_contiguous())) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(part.logits.device());
  C10_CUDA_CHECK(class_gradient(
      grad.mutable_data_ptr(),
      *call,
      {.log_sum = log_sum.const_data_ptr(),
       .loss = loss_grad.const_data_ptr(),
       .loss_stride = loss_grad.stride(0),
       .of_log_sum =
           log_sum_grad.defined() ? log_sum_grad.const_data_ptr() : nullptr},
      *kernel_dtype(part.logits),
      stream_of(part.logits)));
  return true;
}

} // namespace weft::cuda
