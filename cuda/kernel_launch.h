#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels.h"

// What all kernels share: their launch, and the dtypes that they compute with.
namespace weft::cuda {

constexpr int kThreads = 256;
/// Threads go on in strides of the grid: enough blocks to fill any device.
constexpr int64_t kMaxBlocks = int64_t{1} << 16;

/// Runs `kernel` in `blocks` of `threads`. tests/cuda runs it without a GPU, in
/// a grid of its own.
template <class... Parameters, class... Arguments>
void start(
    void (*kernel)(Parameters...),
    int64_t blocks,
    unsigned threads,
    cudaStream_t stream,
    Arguments... arguments) {
#ifdef __CUDACC__
  const auto grid = static_cast<unsigned>(std::min(blocks, kMaxBlocks));
  kernel<<<grid, threads, 0, stream>>>(arguments...);
#else
  static_cast<void>(blocks);
  static_cast<void>(threads);
  static_cast<void>(stream);
  launch_on_host([&] { kernel(arguments...); });
#endif
}

/// Runs `kernel` with about one thread for each of `items`.
template <class... Parameters, class... Arguments>
void launch(
    void (*kernel)(Parameters...),
    int64_t items,
    cudaStream_t stream,
    Arguments... arguments) {
  start(
      kernel,
      (items + kThreads - 1) / kThreads,
      kThreads,
      stream,
      arguments...);
}

/// Runs `kernel` with one block for each of `rows`, of a power of two of
/// threads that is about `items_of_row`.
template <class... Parameters, class... Arguments>
void launch_rows(
    void (*kernel)(Parameters...),
    int64_t rows,
    int64_t items_of_row,
    cudaStream_t stream,
    Arguments... arguments) {
  constexpr unsigned kWarp = 32;
  unsigned threads = kWarp;
  while (threads < kThreads && threads < items_of_row) {
    threads *= 2;
  }
  start(kernel, rows, threads, stream, arguments...);
}

/// The first item of this thread, and the distance to its next one.
__device__ inline int64_t first_item() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t item_stride() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

/// Rounds as c10::Half and c10::BFloat16 do.
template <class T>
struct Rounded;
template <>
struct Rounded<double> {
  using Sum = double;
  __device__ static double from(double x) { return x; }
  __device__ static double widen(double x) { return x; }
  __device__ static double narrow(double x) { return x; }
};
template <>
struct Rounded<float> {
  using Sum = float;
  __device__ static float from(double x) { return __double2float_rn(x); }
  __device__ static float widen(float x) { return x; }
  __device__ static float narrow(float x) { return x; }
};
template <>
struct Rounded<__half> {
  using Sum = float;
  __device__ static __half from(double x) {
    return __float2half_rn(__double2float_rn(x));
  }
  __device__ static float widen(__half x) { return __half2float(x); }
  __device__ static __half narrow(float x) { return __float2half_rn(x); }
};
template <>
struct Rounded<__nv_bfloat16> {
  using Sum = float;
  __device__ static __nv_bfloat16 from(double x) {
    return __float2bfloat16_rn(__double2float_rn(x));
  }
  __device__ static float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ static __nv_bfloat16 narrow(float x) {
    return __float2bfloat16_rn(x);
  }
};

/// Calls `run` with a value of the type, and returns what its launch did.
template <class Run>
cudaError_t with_dtype(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::kFloat:
      run(float());
      break;
    case Dtype::kDouble:
      run(double());
      break;
    case Dtype::kHalf:
      run(__half());
      break;
    case Dtype::kBFloat16:
      run(__nv_bfloat16());
      break;
  }
  return cudaGetLastError();
}

} // namespace weft::cuda
