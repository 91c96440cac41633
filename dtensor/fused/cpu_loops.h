#pragma once

#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

// Note [Fused loops]
// ~~~~~~~~~~~~~~~~~~
// The arithmetic of the fused ops on the CPU: plain loops over rows, compiled
// for several processors; the program selects one version at its start. Half
// and bfloat16 are computed in float. The result of a row does not depend on
// its position, on other rows or on the number of threads: full and short
// blocks use the same instructions, and sums over a row are added in one order.

namespace weft::dtensor::fused {

/// The type in which values of type T are computed.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Computes silu(gate) * up. Row r starts at r times its tensor's stride. Each
/// row has `columns` elements, except for the last one if `count` elements are
/// fewer.
template <class T>
struct SwigluLoop {
  const T* gate;
  const T* up;
  T* output;
  int64_t gate_stride, up_stride, output_stride;
  int64_t columns, count;
};

template <class T>
struct SwigluBackwardLoop {
  const T* grad;
  const T* gate;
  const T* up;
  T* gate_grad;
  T* up_grad;
  int64_t grad_stride, gate_stride, up_stride, output_stride;
  int64_t columns, count;
};

/// Computes x / rms(x) * weight and 1 / rms(x).
template <class T>
struct RmsNormLoop {
  const T* input;
  const T* weight;
  T* output;
  Compute<T>* rstd;
  int64_t input_stride, columns;
  double eps;
};

/// Computes the gradients of RmsNormLoop. Each chunk of `chunk` rows adds its
/// part of the weight gradient to one row of `partial_weight_grads` [chunks,
/// columns].
template <class T>
struct RmsNormBackwardLoop {
  const T* grad;
  const T* input;
  const T* weight;
  const Compute<T>* rstd;
  T* input_grad;
  Compute<T>* partial_weight_grads;
  int64_t grad_stride, input_stride, columns;
  int64_t rows, chunk;
};

/// Rotates the pairs (x[j], x[j + half]) of each row of [B, H, T, 2 * half] by
/// the angles of its position t, backwards if `transposed`. Strides are those
/// of B, H and T.
template <class T>
struct RotaryLoop {
  const T* input;
  const T* cos;
  const T* sin;
  T* output;
  int64_t input_strides[3], output_strides[3];
  int64_t cos_stride, sin_stride;
  int64_t heads, length, half;
  bool transposed;
};

/// A block of attention scores of several heads, and how it lies in memory. Row
/// h * queries + i belongs to query `begin` + i of head h, and starts at h *
/// head_stride + i * stride. It attends to all `keys`, or with causal attention
/// only to those up to its own position. What lies behind the keys up to
/// `stride` becomes 0.
struct ScoreRows {
  int64_t queries, keys;
  int64_t head_stride, stride;
  int64_t begin;
  bool is_causal;
  /// The factor of the query-key products; above 0.
  float scale;
  /// The stride of heads in logsumexp: head h and query i are at h * length +
  /// i.
  int64_t length;
};

/// Computes the softmax of the scores in place, and the logarithm of each row's
/// sum of exponentials.
struct SoftmaxLoop {
  ScoreRows rows;
  float* scores;
  float* logsumexp;
};

/// Recomputes the probabilities in place, and converts the gradients of the
/// probabilities to those of the query-key products.
struct SoftmaxBackwardLoop {
  ScoreRows rows;
  float* scores;
  float* grads;
  const float* logsumexp;
};

/// Rounds rows 2 r and 2 r + 1 to bfloat16 and writes them as row r of `pairs`;
/// see Note [Pairs of rows] in matmul/amx.h. Rows are contiguous.
template <class T>
struct PairRowsLoop {
  const T* input;
  uint32_t* pairs;
  int64_t columns;
};

#define WEFT_FOR_EACH_DTYPE(APPLY) \
  APPLY(float)                     \
  APPLY(double)                    \
  APPLY(c10::BFloat16)             \
  APPLY(c10::Half)

/// Declares the loops over rows [first, last). The unit is a chunk of rows for
/// RmsNormBackwardLoop and a pair b * T + t for RotaryLoop.
#define WEFT_DECLARE_LOOPS(T)                                   \
  void run(const SwigluLoop<T>&, int64_t first, int64_t last);  \
  void run(const SwigluBackwardLoop<T>&, int64_t, int64_t);     \
  void run(const RmsNormLoop<T>&, int64_t first, int64_t last); \
  void run(const RmsNormBackwardLoop<T>&, int64_t, int64_t);    \
  void run(const RotaryLoop<T>&, int64_t first, int64_t last);
WEFT_FOR_EACH_DTYPE(WEFT_DECLARE_LOOPS)
#undef WEFT_DECLARE_LOOPS
void run(const SoftmaxLoop& loop, int64_t first, int64_t last);
void run(const SoftmaxBackwardLoop& loop, int64_t first, int64_t last);
void run(const PairRowsLoop<float>& loop, int64_t first, int64_t last);
void run(const PairRowsLoop<c10::BFloat16>& loop, int64_t first, int64_t last);

} // namespace weft::dtensor::fused
