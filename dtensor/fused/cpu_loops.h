#pragma once

#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

// Note [Fused loops]
// ~~~~~~~~~~~~~~~~~~
// The arithmetic of the fused ops on the CPU: plain loops over rows, compiled
// for several processors, of which one is chosen when the program starts. Half
// and bfloat16 are computed in float. A row's numbers do not depend on where
// it lies, which other rows there are or how many threads share them: full and
// short blocks run through the same instructions, and sums over a row are
// added in one order.

namespace weft::dtensor::fused {

/// In which type values of T are computed.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// silu(gate) * up. Row r starts at r times its tensor's stride; rows have
/// `columns` elements as long as there are `count` in all.
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

/// x / rms(x) * weight, and 1 / rms(x).
template <class T>
struct RmsNormLoop {
  const T* input;
  const T* weight;
  T* output;
  Compute<T>* rstd;
  int64_t input_stride, columns;
  double eps;
};

/// Chunks of `chunk` rows add up their part of the weight's gradient each, in
/// `partial_weight_grads` [chunks, columns].
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

/// Turns the pairs (x[j], x[j + half]) of each row of [B, H, T, 2 * half] by
/// the angles of its t; backwards if `transposed`. Strides: of B, H and T.
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

/// A block of attention's scores, for several heads: row h * queries + i
/// belongs to query `begin` + i of head h, and sees all `keys`, or only those
/// up to its own position if the attention is causal.
struct ScoreRows {
  int64_t queries, keys;
  int64_t begin;
  bool is_causal;
  /// What a product of query and key is multiplied by; above 0.
  float scale;
  /// Of head h and query i: at h * length + i.
  int64_t length;
};

/// Scores to probabilities, in place, and the logarithm of each row's sum of
/// exponentials.
struct SoftmaxLoop {
  ScoreRows rows;
  float* scores;
  float* logsumexp;
};

/// Scores to probabilities again, in place, and the probabilities' gradients to
/// those of the products of query and key.
struct SoftmaxBackwardLoop {
  ScoreRows rows;
  float* scores;
  float* grads;
  const float* logsumexp;
};

#define WEFT_FOR_EACH_DTYPE(APPLY) \
  APPLY(float)                     \
  APPLY(double)                    \
  APPLY(c10::BFloat16)             \
  APPLY(c10::Half)

/// Rows [first, last); chunks of rows for RmsNormBackwardLoop, pairs b * T + t
/// for RotaryLoop.
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

} // namespace weft::dtensor::fused
