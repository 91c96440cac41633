// The fused ops of dtensor/fused on a GPU. Each kernel reads and writes its
// tensors once, while libtorch's kernels would take two to a dozen passes over
// memory.

#include <cassert>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cuda/kernel_launch.h"

namespace weft::cuda {
namespace {

/// The bytes that a thread reads or writes at once if the alignment allows it.
constexpr int kPackBytes = 16;

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

template <class T, int kCount>
__device__ Pack<T, kCount> read(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <class T, int kCount>
__device__ void write(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
}

/// Calls `run` with a value of the type, the length of a pack and the number of
/// packs. The packs have kPackBytes if they divide `count` and
/// `takes_packs`(length) is true, otherwise one element.
template <class TakesPacks, class Run>
cudaError_t with_packs(
    Dtype dtype,
    int64_t count,
    const TakesPacks& takes_packs,
    const Run& run) {
  if (count == 0) {
    return cudaSuccess;
  }
  return with_dtype(dtype, [&](auto type) {
    constexpr int kPack = kPackBytes / sizeof(type);
    if (count % kPack == 0 && takes_packs(kPack)) {
      run(type, std::integral_constant<int, kPack>(), count / kPack);
    } else {
      run(type, std::integral_constant<int, 1>(), count);
    }
  });
}

// --- SwiGLU -----------------------------------------------------------------

template <class Number>
__device__ Number sigmoid(Number x) {
  return Number(1) / (Number(1) + std::exp(-x));
}

template <class T, int kCount>
__global__ void
swiglu_kernel(T* output, const T* gate, const T* up, int64_t packs) {
  using Number = typename Rounded<T>::Sum;
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const auto g = read<T, kCount>(gate + i * kCount);
    const auto u = read<T, kCount>(up + i * kCount);
    Pack<T, kCount> y;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Number x = Rounded<T>::widen(g.values[k]);
      y.values[k] =
          Rounded<T>::narrow(x * sigmoid(x) * Rounded<T>::widen(u.values[k]));
    }
    write(output + i * kCount, y);
  }
}

template <class T, int kCount>
__global__ void swiglu_backward_kernel(
    T* gate_grad,
    T* up_grad,
    const T* grad,
    const T* gate,
    const T* up,
    int64_t packs) {
  using Number = typename Rounded<T>::Sum;
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const auto d = read<T, kCount>(grad + i * kCount);
    const auto g = read<T, kCount>(gate + i * kCount);
    const auto u = read<T, kCount>(up + i * kCount);
    Pack<T, kCount> dg;
    Pack<T, kCount> du;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Number dy = Rounded<T>::widen(d.values[k]);
      const Number x = Rounded<T>::widen(g.values[k]);
      const Number s = sigmoid(x);
      dg.values[k] = Rounded<T>::narrow(
          dy * Rounded<T>::widen(u.values[k]) * s *
          (Number(1) + x * (Number(1) - s)));
      du.values[k] = Rounded<T>::narrow(dy * x * s);
    }
    write(gate_grad + i * kCount, dg);
    write(up_grad + i * kCount, du);
  }
}

// --- rotary embedding -------------------------------------------------------

/// One thread rotates kCount pairs (x[j], x[j + half]) of adjacent j.
template <class T, int kCount>
__global__ void rotary_kernel(Rotary call, int64_t packs) {
  using Number = typename Rounded<T>::Sum;
  const auto* input = static_cast<const T*>(call.input);
  const auto* cos = static_cast<const T*>(call.cos);
  const auto* sin = static_cast<const T*>(call.sin);
  auto* output = static_cast<T*>(call.output);
  const int64_t packs_of_row = call.half / kCount;
  // In backward, the signs of the sines are inverted, and each half of a pair
  // uses the sines of the other half.
  const Number sign = call.transposed ? Number(-1) : Number(1);
  const int64_t sin_of_left = call.transposed ? call.half : 0;
  const int64_t sin_of_right = call.transposed ? 0 : call.half;
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const int64_t j = i % packs_of_row * kCount;
    const int64_t row = i / packs_of_row;
    const int64_t h = row % call.heads;
    const int64_t t = row / call.heads % call.length;
    const int64_t b = row / call.heads / call.length;
    const T* x = input + b * call.input_strides[0] + h * call.input_strides[1] +
                 t * call.input_strides[2] + j;
    T* y = output + b * call.output_strides[0] + h * call.output_strides[1] +
           t * call.output_strides[2] + j;
    const T* c = cos + t * call.cos_stride + j;
    const T* s = sin + t * call.sin_stride + j;
    const auto left = read<T, kCount>(x);
    const auto right = read<T, kCount>(x + call.half);
    const auto left_cos = read<T, kCount>(c);
    const auto right_cos = read<T, kCount>(c + call.half);
    const auto left_sin = read<T, kCount>(s + sin_of_left);
    const auto right_sin = read<T, kCount>(s + sin_of_right);
    Pack<T, kCount> y_left;
    Pack<T, kCount> y_right;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Number l = Rounded<T>::widen(left.values[k]);
      const Number r = Rounded<T>::widen(right.values[k]);
      y_left.values[k] = Rounded<T>::narrow(
          l * Rounded<T>::widen(left_cos.values[k]) -
          sign * r * Rounded<T>::widen(left_sin.values[k]));
      y_right.values[k] = Rounded<T>::narrow(
          r * Rounded<T>::widen(right_cos.values[k]) +
          sign * l * Rounded<T>::widen(right_sin.values[k]));
    }
    write(y, y_left);
    write(y + call.half, y_right);
  }
}

bool takes_packs(const Rotary& call, int64_t count) {
  bool fits = call.half % count == 0 && call.cos_stride % count == 0 &&
              call.sin_stride % count == 0 && is_aligned(call.input) &&
              is_aligned(call.cos) && is_aligned(call.sin) &&
              is_aligned(call.output);
  for (int d = 0; d < 3; ++d) {
    fits = fits && call.input_strides[d] % count == 0 &&
           call.output_strides[d] % count == 0;
  }
  return fits;
}

// --- cross entropy ----------------------------------------------------------

/// The maximum of some numbers x, and the sum of exp(x - maximum).
template <class Number>
struct Exponentials {
  Number maximum;
  Number sum;
};

template <class Number>
constexpr Number kLowest = std::numeric_limits<Number>::lowest();
template <class Number>
constexpr Number kInfinity = std::numeric_limits<Number>::infinity();

/// Returns the number to subtract before exp(). It is finite even if all
/// numbers are -inf, so that their exponentials are 0 and not NaN.
template <class Number>
__device__ Number finite(Number maximum) {
  return maximum < kLowest<Number> ? kLowest<Number> : maximum;
}

template <class Number>
__device__ Exponentials<Number> together(
    const Exponentials<Number>& a,
    const Exponentials<Number>& b) {
  const Number maximum = a.maximum < b.maximum ? b.maximum : a.maximum;
  const Number shift = finite(maximum);
  return {
      maximum,
      a.sum * std::exp(a.maximum - shift) +
          b.sum * std::exp(b.maximum - shift)};
}

template <class T, int kCount>
__device__ Exponentials<typename Rounded<T>::Sum> exponentials_of(
    const Pack<T, kCount>& pack) {
  using Number = typename Rounded<T>::Sum;
  Number maximum = Rounded<T>::widen(pack.values[0]);
#pragma unroll
  for (int k = 1; k < kCount; ++k) {
    const Number x = Rounded<T>::widen(pack.values[k]);
    maximum = maximum < x ? x : maximum;
  }
  const Number shift = finite(maximum);
  Number sum = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    sum += std::exp(Rounded<T>::widen(pack.values[k]) - shift);
  }
  return {maximum, sum};
}

/// Returns the column of the row's target in this shard. It is outside of the
/// columns if the target is ignored or in another shard.
__device__ inline int64_t target_column(const ClassRows& call, int64_t row) {
  const int64_t target = call.target[row];
  if (target == call.ignore_index) {
    return -1;
  }
  assert(target >= 0 && target < call.classes && "target is not a class");
  return target - call.first_class;
}

/// One block computes one row at a time.
template <class T, int kCount>
__global__ void class_statistics_kernel(
    typename Rounded<T>::Sum* statistics,
    ClassRows call) {
  using Number = typename Rounded<T>::Sum;
  __shared__ Exponentials<Number> of_threads[kThreads];
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(call.logits) + row * call.stride;
    Exponentials<Number> own{-kInfinity<Number>, 0};
    for (int64_t i = threadIdx.x; i < call.columns / kCount; i += blockDim.x) {
      own = together(own, exponentials_of(read<T, kCount>(x + i * kCount)));
    }
    of_threads[threadIdx.x] = own;
    for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
      __syncthreads();
      if (threadIdx.x < n) {
        of_threads[threadIdx.x] =
            together(of_threads[threadIdx.x], of_threads[threadIdx.x + n]);
      }
    }
    if (threadIdx.x == 0) {
      const int64_t column = target_column(call, row);
      const bool is_here = column >= 0 && column < call.columns;
      statistics[row] = of_threads[0].maximum;
      statistics[call.rows + row] = of_threads[0].sum;
      statistics[2 * call.rows + row] =
          is_here ? Rounded<T>::widen(x[column]) : Number(0);
    }
    __syncthreads();
  }
}

template <class T, int kCount>
__global__ void
class_gradient_kernel(T* grad, ClassRows call, ClassGradients gradients) {
  using Number = typename Rounded<T>::Sum;
  const auto* log_sum = static_cast<const Number*>(gradients.log_sum);
  const auto* loss = static_cast<const Number*>(gradients.loss);
  const auto* of_log_sum = static_cast<const Number*>(gradients.of_log_sum);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(call.logits) + row * call.stride;
    T* y = grad + row * call.columns;
    const bool is_ignored = call.target[row] == call.ignore_index;
    const int64_t column = target_column(call, row);
    const Number d = is_ignored ? Number(0) : loss[row * gradients.loss_stride];
    const Number scale = of_log_sum == nullptr ? d : d + of_log_sum[row];
    const Number shift = log_sum[row];
    for (int64_t i = threadIdx.x; i < call.columns / kCount; i += blockDim.x) {
      const auto pack = read<T, kCount>(x + i * kCount);
      Pack<T, kCount> result;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const Number softmax =
            std::exp(Rounded<T>::widen(pack.values[k]) - shift);
        const Number taken = i * kCount + k == column ? d : Number(0);
        result.values[k] = Rounded<T>::narrow(softmax * scale - taken);
      }
      write(y + i * kCount, result);
    }
  }
}

/// Calls `run` like with_packs(), with packs that divide each row.
template <class Run>
cudaError_t with_packs_of_rows(
    const ClassRows& call,
    const void* output,
    Dtype dtype,
    const Run& run) {
  const bool aligned = is_aligned(call.logits) && is_aligned(output);
  return with_packs(
      dtype,
      call.rows == 0 ? 0 : call.columns,
      [&](int count) { return aligned && call.stride % count == 0; },
      run);
}

} // namespace

cudaError_t swiglu(
    void* output,
    const void* gate,
    const void* up,
    Dtype dtype,
    int64_t count,
    cudaStream_t stream) {
  const bool aligned = is_aligned(output) && is_aligned(gate) && is_aligned(up);
  return with_packs(
      dtype,
      count,
      [&](int) { return aligned; },
      [&](auto type, auto pack, int64_t packs) {
        using T = decltype(type);
        launch(
            swiglu_kernel<T, pack.value>,
            packs,
            stream,
            static_cast<T*>(output),
            static_cast<const T*>(gate),
            static_cast<const T*>(up),
            packs);
      });
}

cudaError_t swiglu_backward(
    void* gate_grad,
    void* up_grad,
    const void* grad,
    const void* gate,
    const void* up,
    Dtype dtype,
    int64_t count,
    cudaStream_t stream) {
  const bool aligned = is_aligned(gate_grad) && is_aligned(up_grad) &&
                       is_aligned(grad) && is_aligned(gate) && is_aligned(up);
  return with_packs(
      dtype,
      count,
      [&](int) { return aligned; },
      [&](auto type, auto pack, int64_t packs) {
        using T = decltype(type);
        launch(
            swiglu_backward_kernel<T, pack.value>,
            packs,
            stream,
            static_cast<T*>(gate_grad),
            static_cast<T*>(up_grad),
            static_cast<const T*>(grad),
            static_cast<const T*>(gate),
            static_cast<const T*>(up),
            packs);
      });
}

cudaError_t
rotary_embedding(const Rotary& call, Dtype dtype, cudaStream_t stream) {
  return with_packs(
      dtype,
      call.batch * call.heads * call.length * call.half,
      [&](int count) { return takes_packs(call, count); },
      [&](auto type, auto pack, int64_t packs) {
        using T = decltype(type);
        launch(rotary_kernel<T, pack.value>, packs, stream, call, packs);
      });
}

cudaError_t class_statistics(
    void* statistics,
    const ClassRows& call,
    Dtype dtype,
    cudaStream_t stream) {
  return with_packs_of_rows(
      call, nullptr, dtype, [&](auto type, auto pack, int64_t packs) {
        using T = decltype(type);
        launch_rows(
            class_statistics_kernel<T, pack.value>,
            call.rows,
            packs,
            stream,
            static_cast<typename Rounded<T>::Sum*>(statistics),
            call);
      });
}

cudaError_t class_gradient(
    void* grad,
    const ClassRows& call,
    const ClassGradients& gradients,
    Dtype dtype,
    cudaStream_t stream) {
  return with_packs_of_rows(
      call, grad, dtype, [&](auto type, auto pack, int64_t packs) {
        using T = decltype(type);
        launch_rows(
            class_gradient_kernel<T, pack.value>,
            call.rows,
            packs,
            stream,
            static_cast<T*>(grad),
            call,
            gradients);
      });
}

} // namespace weft::cuda
