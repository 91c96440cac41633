// Random numbers and the reduction of reduce_scatter.

#include "cuda/kernel_launch.h"
#include "dtensor/random/random_arithmetic.h"

namespace weft::cuda {
namespace {

// --- random numbers ---------------------------------------------------------

/// Returns the offset of row `row` of the box in the full tensor.
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

/// One thread generates the four numbers of a Philox block and stores those
/// that are in its row. A row of `length` overlaps at most `spans` blocks.
template <class T, bool kNormal>
__global__ void fill_kernel(
    T* data,
    Box box,
    Numbers numbers,
    int64_t rows,
    int64_t length,
    int64_t spans) {
  for (int64_t i = first_item(); i < rows * spans; i += item_stride()) {
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
  for (int64_t i = first_item(); i < count; i += item_stride()) {
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
  if (box.ndim == 0) {
    // A scalar is the first number of the full tensor.
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
