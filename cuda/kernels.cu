#include "cuda/kernels.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dtensor/random/random_arithmetic.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
/// Threads go on in strides of the grid: enough blocks to fill any device.
constexpr int64_t kMaxBlocks = int64_t{1} << 16;

template <class... Parameters, class... Arguments>
void launch(
    void (*kernel)(Parameters...),
    int64_t items,
    cudaStream_t stream,
    Arguments... arguments) {
#ifdef __CUDACC__
  const auto blocks = static_cast<unsigned>(
      std::min((items + kThreads - 1) / kThreads, kMaxBlocks));
  kernel<<<blocks, kThreads, 0, stream>>>(arguments...);
#else // tests/cuda runs the kernels without a GPU, as one thread.
  static_cast<void>(items);
  static_cast<void>(stream);
  kernel(arguments...);
#endif
}

// --- rounding, as c10::Half and c10::BFloat16 do it -------------------------

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

// --- random numbers ---------------------------------------------------------

/// Where row `row` of the box begins in the whole.
__device__ int64_t begin_of_row(const Box& box, int64_t row) {
  const int last = box.ndim - 1;
  int64_t begin = box.offset[last];
  for (int d = last - 1; d >= 0; --d) {
    const int64_t index = row % box.sizes[d];
    row /= box.sizes[d];
    begin += (index + box.offset[d]) * box.strides[d];
  }
  return begin;
}

/// One thread makes the four numbers of a Philox block and keeps those that
/// lie in its row. A row of `length` touches at most `spans` blocks.
template <class T, bool kNormal>
__global__ void fill_kernel(
    T* data,
    Box box,
    Numbers numbers,
    int64_t rows,
    int64_t length,
    int64_t spans) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * spans;
       i += step) {
    const int64_t row = i / spans;
    const int64_t begin = begin_of_row(box, row);
    const int64_t end = begin + length;
    const int64_t block = begin / 4 + i % spans;
    if (4 * block >= end) {
      continue;
    }
    const auto four =
        kNormal ? dtensor::normal_block(numbers.seed, numbers.stream, block)
                : dtensor::uniform_block(numbers.seed, numbers.stream, block);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const int64_t global = 4 * block + lane;
      if (global >= begin && global < end) {
        data[row * length + global - begin] = Rounded<T>::from(
            dtensor::placed(four.numbers[lane], numbers.shift, numbers.scale));
      }
    }
  }
}

// --- reduction --------------------------------------------------------------

template <class T>
__global__ void sum_kernel(
    T* output,
    const T* parts,
    int64_t rows,
    int64_t count,
    bool average) {
  using Sum = typename Rounded<T>::Sum;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count;
       i += step) {
    Sum sum = Rounded<T>::widen(parts[i]);
    for (int64_t row = 1; row < rows; ++row) {
      sum += Rounded<T>::widen(parts[row * count + i]);
    }
    if (average) {
      sum /= static_cast<Sum>(rows);
    }
    output[i] = Rounded<T>::narrow(sum);
  }
}

} // namespace

cudaError_t fill_random(
    void* data,
    Dtype dtype,
    const Box& box,
    const Numbers& numbers,
    cudaStream_t stream) {
  Box rows_of = box;
  if (box.ndim == 0) { // One number, the full tensor's first.
    rows_of.ndim = 1;
    rows_of.sizes[0] = 1;
  }
  const int64_t length = rows_of.sizes[rows_of.ndim - 1];
  int64_t rows = 1;
  for (int d = 0; d + 1 < rows_of.ndim; ++d) {
    rows *= rows_of.sizes[d];
  }
  if (rows * length == 0) {
    return cudaSuccess;
  }
  const int64_t spans = (length + 3) / 4 + 1;
  return with_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    launch(
        numbers.is_normal ? fill_kernel<T, true> : fill_kernel<T, false>,
        rows * spans,
        stream,
        static_cast<T*>(data),
        rows_of,
        numbers,
        rows,
        length,
        spans);
  });
}

cudaError_t sum_rows(
    void* output,
    const void* parts,
    Dtype dtype,
    int64_t rows,
    int64_t count,
    bool average,
    cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  return with_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    launch(
        sum_kernel<T>,
        count,
        stream,
        static_cast<T*>(output),
        static_cast<const T*>(parts),
        rows,
        count,
        average);
  });
}

} // namespace weft::cuda
