#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

// The kernels' host side, free of libtorch so that nvcc compiles it in seconds.
namespace weft::cuda {

enum class Dtype { kFloat, kDouble, kHalf, kBFloat16 };

/// A box of a row-major full tensor, by rows of its last dim.
struct Box {
  static constexpr int kMaxDims = 8;
  int ndim = 0;
  int64_t sizes[kMaxDims] = {};
  int64_t offset[kMaxDims] = {};
  /// The strides of the full tensor.
  int64_t strides[kMaxDims] = {};
};

struct Numbers {
  uint64_t seed = 0;
  uint64_t stream = 0;
  bool is_normal = false;
  double shift = 0;
  double scale = 1;
};

/// Tensors [batch, heads, length, 2 * half] and tables [length, 2 * half],
/// whose last dim has stride 1.
struct Rotary {
  const void* input = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* output = nullptr;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t length = 0;
  int64_t half = 0;
  /// The strides of batch, heads and length.
  int64_t input_strides[3] = {};
  int64_t output_strides[3] = {};
  int64_t cos_stride = 0;
  int64_t sin_stride = 0;
  bool transposed = false;
};

/// Some rows of logits [rows, columns], whose columns are the classes from
/// `first_class` on, and the class of each row. A row has stride 1.
struct ClassRows {
  const void* logits = nullptr;
  const int64_t* target = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  /// The stride of the rows.
  int64_t stride = 0;
  int64_t first_class = 0;
  /// The number of all classes.
  int64_t classes = 0;
  /// Rows with this target are ignored.
  int64_t ignore_index = 0;
};

/// The gradients of what class_statistics() is for, per row.
struct ClassGradients {
  /// log(sum(exp(logits))) of all classes, dense.
  const void* log_sum = nullptr;
  const void* loss = nullptr;
  int64_t loss_stride = 0;
  /// That of log_sum itself, dense. May be null.
  const void* of_log_sum = nullptr;
};

// Each returns what the launch returned.

/// Fills the dense `data` of `box` with random numbers. See
/// dtensor/random/random.h.
cudaError_t fill_random(
    void* data,
    Dtype dtype,
    const Box& box,
    const Numbers& numbers,
    cudaStream_t stream);

/// Computes output[i] = parts[0][i] + parts[1][i] + ..., in this order, divided
/// by `rows` if `average`. Half and BFloat16 accumulate in float.
/// Shapes: output [count], parts [rows, count], dense.
cudaError_t sum_rows(
    void* output,
    const void* parts,
    Dtype dtype,
    int64_t rows,
    int64_t count,
    bool average,
    cudaStream_t stream);

/// Computes output = silu(gate) * up. Shapes: [count], dense.
cudaError_t swiglu(
    void* output,
    const void* gate,
    const void* up,
    Dtype dtype,
    int64_t count,
    cudaStream_t stream);

/// Computes the gradients of swiglu(). Shapes: [count], dense.
cudaError_t swiglu_backward(
    void* gate_grad,
    void* up_grad,
    const void* grad,
    const void* gate,
    const void* up,
    Dtype dtype,
    int64_t count,
    cudaStream_t stream);

/// Rotates the pairs (x[j], x[j + half]) of each row by the angles of its
/// position, backwards if `transposed`. See dtensor/fused/fused_ops.h.
cudaError_t
rotary_embedding(const Rotary& call, Dtype dtype, cudaStream_t stream);

/// Computes, for each row, the maximum m of its logits, the sum of exp(x - m),
/// and the logit of its target, which is 0 if that is not among the columns.
/// A target that is neither a class nor ignored fails a device assertion.
/// Shapes: statistics [3, rows], dense, of double for logits of double, else
/// of float.
cudaError_t class_statistics(
    void* statistics,
    const ClassRows& call,
    Dtype dtype,
    cudaStream_t stream);

/// Computes grad[r, c] = exp(x[r, c] - log_sum[r]) * (loss[r] + of_log_sum[r])
/// - (c is the target of r) * loss[r], with loss[r] = 0 for ignored rows. The
/// numbers per row have the dtype of the statistics.
/// Shapes: grad [rows, columns], dense, of `dtype`.
cudaError_t class_gradient(
    void* grad,
    const ClassRows& call,
    const ClassGradients& gradients,
    Dtype dtype,
    cudaStream_t stream);

} // namespace weft::cuda
