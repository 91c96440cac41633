#include "dtensor/fused/cpu_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/for_each_processor.h"

#define WEFT_LAMBDA __attribute__((always_inline))
// The pointers of one loop are those of different tensors, so that no iteration
// depends on another one. A block of kBlock floats fills two of the widest
// vectors, hence the interleave count. Without unroll(disable), clang unrolls
// the short loops over a block before it vectorizes them, and then does not
// vectorize them.
#ifdef __clang__
#define WEFT_VECTORS                                   \
  WEFT_IVDEP _Pragma("clang loop interleave_count(2)") \
      _Pragma("clang loop unroll(disable)")
#else
#define WEFT_VECTORS WEFT_IVDEP
#endif

namespace weft::dtensor::fused {
namespace {

constexpr int64_t kBlock = 32;

WEFT_INLINE float widen(float x) {
  return x;
}
WEFT_INLINE double widen(double x) {
  return x;
}
WEFT_INLINE float widen(c10::BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16);
}
WEFT_INLINE float widen(c10::Half x) {
  return static_cast<float>(x);
}

WEFT_INLINE void narrow(float x, float& to) {
  to = x;
}
WEFT_INLINE void narrow(double x, double& to) {
  to = x;
}
// Rounds to the nearest number, ties to even.
WEFT_INLINE void narrow(float x, c10::BFloat16& to) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  to.x = static_cast<uint16_t>(x == x ? rounded : 0x7FC0);
}
WEFT_INLINE void narrow(float x, c10::Half& to) {
  to = c10::Half(x);
}

// A block of a row as numbers of type Compute<T>. It is the row's own memory if
// the block is full and T needs no conversion, otherwise a copy. read() fills a
// short block up with `rest`.
template <class T>
class Block {
 public:
  using Number = Compute<T>;

  WEFT_INLINE const Number* read(const T* row, int64_t size, Number rest = 0) {
    if constexpr (std::is_same_v<T, Number>) {
      if (size == kBlock) {
        return row;
      }
    }
    if (size == kBlock) {
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        numbers_[i] = widen(row[i]);
      }
    } else {
      for (int64_t i = 0; i < kBlock; ++i) {
        numbers_[i] = i < size ? widen(row[i]) : rest;
      }
    }
    return numbers_;
  }

  /// Reads `size` elements. `room` elements, at most a block, are in memory. If
  /// a full block is, loads all of it and replaces those after `size` by
  /// `rest`, without a branch per element.
  WEFT_INLINE const Number*
  read(const T* row, int64_t size, Number rest, int64_t room) {
    if (size == kBlock || room < kBlock) {
      return read(row, size, rest);
    }
    const auto count = static_cast<int32_t>(size);
    WEFT_VECTORS
    for (int32_t i = 0; i < int32_t{kBlock}; ++i) {
      const Number x = widen(row[i]);
      numbers_[i] = i < count ? x : rest;
    }
    return numbers_;
  }

  WEFT_INLINE Number* to_write(T* row, int64_t size) {
    if constexpr (std::is_same_v<T, Number>) {
      return size == kBlock ? row : numbers_;
    }
    return numbers_;
  }

  /// Copies the numbers in the memory from to_write() to the row, if it is not
  /// the row itself.
  WEFT_INLINE void write(T* row, int64_t size) const {
    if (size == kBlock) {
      if constexpr (!std::is_same_v<T, Number>) {
        WEFT_VECTORS
        for (int64_t i = 0; i < kBlock; ++i) {
          narrow(numbers_[i], row[i]);
        }
      }
      return;
    }
    for (int64_t i = 0; i < size; ++i) {
      narrow(numbers_[i], row[i]);
    }
  }

 private:
  alignas(64) Number numbers_[kBlock];
};

template <class Body>
WEFT_INLINE void for_each_block(int64_t columns, const Body& body) {
  for (int64_t at = 0; at < columns; at += kBlock) {
    body(at, std::min(kBlock, columns - at));
  }
}

// Combines the lanes pairwise to one number. A loop over a row accumulates a
// sum or a maximum in kBlock lanes first.
template <class Number, class Combine>
WEFT_INLINE Number combine_lanes(Number* lanes, const Combine& combine) {
  for (int64_t width = kBlock / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) {
      lanes[i] = combine(lanes[i], lanes[i + width]);
    }
  }
  return lanes[0];
}

template <class Number>
WEFT_INLINE Number sum_of_lanes(Number* lanes) {
  return combine_lanes(
      lanes, [](Number a, Number b) WEFT_LAMBDA { return a + b; });
}

WEFT_INLINE float larger(float a, float b) {
  return b > a ? b : a;
}

// ---- SwiGLU -----------------------------------------------------------------

// Returns e^x within 2 units in the last place, computed as 2^n times a
// polynomial of the remainder. Results that would be subnormal are 2^-126,
// because some processors take 100 ns to compute a subnormal number.
// Source: Moshier, Cephes (expf).
constexpr float kLogOfSmallest = -87.3365F; // log(2^-126)
WEFT_INLINE float normal_exp_of(float x) {
  // For 105 and above the result is infinity. NaN passes both comparisons.
  x = x > 105.0F ? 105.0F : x;
  x = x < kLogOfSmallest ? kLogOfSmallest : x;
  // This is 1.5 * 2^23. Adding it to a number rounds that number to the integer
  // n, and the last bits of the sum are n.
  constexpr float kRound = 12582912.0F;
  const float shifted = x * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // Multiplies by 2^n in two factors, because 2^n itself may be too large for a
  // float.
  const int32_t whole = std::bit_cast<int32_t>(shifted) - 0x4B400000;
  const int32_t part = whole >> 1;
  return p * std::bit_cast<float>((part + 127) << 23) *
         std::bit_cast<float>((whole - part + 127) << 23);
}

WEFT_INLINE double normal_exp_of(double x) {
  return std::exp(x);
}

// Returns e^x, with 0 for results that would be subnormal. So the scores of
// keys that a query does not see, which are -inf, give 0.
WEFT_INLINE float exp_of(float x) {
  return x < kLogOfSmallest ? 0.0F : normal_exp_of(x);
}

// normal_exp_of() can be used here, because 2^-126 and 0 give the same sum with
// 1.
template <class T>
WEFT_INLINE void
swiglu(const SwigluLoop<T>& loop, int64_t first, int64_t last) {
  using Number = Compute<T>;
  for (int64_t row = first; row < last; ++row) {
    const auto columns =
        std::min(loop.columns, loop.count - row * loop.columns);
    for_each_block(columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
      Block<T> gates, ups, outputs;
      const Number* g =
          gates.read(loop.gate + row * loop.gate_stride + at, size);
      const Number* u = ups.read(loop.up + row * loop.up_stride + at, size);
      T* target = loop.output + row * loop.output_stride + at;
      Number* y = outputs.to_write(target, size);
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        y[i] = g[i] / (1 + normal_exp_of(-g[i])) * u[i];
      }
      outputs.write(target, size);
    });
  }
}

template <class T>
WEFT_INLINE void
swiglu(const SwigluBackwardLoop<T>& loop, int64_t first, int64_t last) {
  using Number = Compute<T>;
  for (int64_t row = first; row < last; ++row) {
    const auto columns =
        std::min(loop.columns, loop.count - row * loop.columns);
    for_each_block(columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
      Block<T> grads, gates, ups, gate_grads, up_grads;
      const Number* d =
          grads.read(loop.grad + row * loop.grad_stride + at, size);
      const Number* g =
          gates.read(loop.gate + row * loop.gate_stride + at, size);
      const Number* u = ups.read(loop.up + row * loop.up_stride + at, size);
      T* gate_target = loop.gate_grad + row * loop.output_stride + at;
      T* up_target = loop.up_grad + row * loop.output_stride + at;
      Number* dg = gate_grads.to_write(gate_target, size);
      Number* du = up_grads.to_write(up_target, size);
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        const Number sigmoid = 1 / (1 + normal_exp_of(-g[i]));
        du[i] = d[i] * (g[i] * sigmoid);
        dg[i] = d[i] * u[i] * (sigmoid * (1 + g[i] * (1 - sigmoid)));
      }
      gate_grads.write(gate_target, size);
      up_grads.write(up_target, size);
    });
  }
}

// ---- RMSNorm ----------------------------------------------------------------

template <class T>
WEFT_INLINE void
rms_norm(const RmsNormLoop<T>& loop, int64_t first, int64_t last) {
  using Number = Compute<T>;
  for (int64_t row = first; row < last; ++row) {
    const T* input = loop.input + row * loop.input_stride;
    alignas(64) Number squares[kBlock] = {};
    for_each_block(loop.columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
      Block<T> inputs;
      const Number* x = inputs.read(input + at, size);
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        squares[i] += x[i] * x[i];
      }
    });
    const Number mean =
        sum_of_lanes(squares) / static_cast<Number>(loop.columns);
    const Number rstd = 1 / std::sqrt(mean + static_cast<Number>(loop.eps));
    loop.rstd[row] = rstd;
    for_each_block(loop.columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
      Block<T> inputs, weights, outputs;
      const Number* x = inputs.read(input + at, size);
      const Number* w = weights.read(loop.weight + at, size);
      T* target = loop.output + row * loop.columns + at;
      Number* y = outputs.to_write(target, size);
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        y[i] = x[i] * rstd * w[i];
      }
      outputs.write(target, size);
    });
  }
}

// Computes the input gradient of a row, (g - x * mean(g * x) / rms^2) / rms
// with g = grad * weight, and adds the row's part of the weight gradient to
// `weight_grads`.
template <class T>
WEFT_INLINE void rms_norm_row(
    const RmsNormBackwardLoop<T>& loop,
    int64_t row,
    Compute<T>* weight_grads) {
  using Number = Compute<T>;
  const T* grad = loop.grad + row * loop.grad_stride;
  const T* input = loop.input + row * loop.input_stride;
  alignas(64) Number products[kBlock] = {};
  for_each_block(loop.columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
    Block<T> grads, inputs, weights;
    const Number* d = grads.read(grad + at, size);
    const Number* x = inputs.read(input + at, size);
    const Number* w = weights.read(loop.weight + at, size);
    WEFT_VECTORS
    for (int64_t i = 0; i < kBlock; ++i) {
      products[i] += d[i] * w[i] * x[i];
    }
  });
  const Number rstd = loop.rstd[row];
  const Number pull =
      sum_of_lanes(products) / static_cast<Number>(loop.columns) * rstd * rstd;
  for_each_block(loop.columns, [&](int64_t at, int64_t size) WEFT_LAMBDA {
    Block<T> grads, inputs, weights, outputs;
    Block<Number> sums;
    const Number* d = grads.read(grad + at, size);
    const Number* x = inputs.read(input + at, size);
    const Number* w = weights.read(loop.weight + at, size);
    T* target = loop.input_grad + row * loop.columns + at;
    Number* dx = outputs.to_write(target, size);
    const Number* before = sums.read(weight_grads + at, size);
    Number* dw = sums.to_write(weight_grads + at, size);
    WEFT_VECTORS
    for (int64_t i = 0; i < kBlock; ++i) {
      dx[i] = (d[i] * w[i] - x[i] * pull) * rstd;
      dw[i] = before[i] + d[i] * (x[i] * rstd);
    }
    outputs.write(target, size);
    sums.write(weight_grads + at, size);
  });
}

template <class T>
WEFT_INLINE void
rms_norm(const RmsNormBackwardLoop<T>& loop, int64_t first, int64_t last) {
  for (int64_t chunk = first; chunk < last; ++chunk) {
    auto* weight_grads = loop.partial_weight_grads + chunk * loop.columns;
    std::fill_n(weight_grads, loop.columns, 0);
    const auto end = std::min(loop.rows, (chunk + 1) * loop.chunk);
    for (int64_t row = chunk * loop.chunk; row < end; ++row) {
      rms_norm_row(loop, row, weight_grads);
    }
  }
}

// ---- rotary embedding -------------------------------------------------------

template <class T>
WEFT_INLINE void
rotary(const RotaryLoop<T>& loop, int64_t first, int64_t last) {
  using Number = Compute<T>;
  const int64_t half = loop.half;
  // The transposed rotation multiplies each element by the sine of the other
  // half, with the opposite sign.
  const Number sign = loop.transposed ? -1 : 1;
  for (int64_t row = first; row < last; ++row) {
    const int64_t b = row / loop.length;
    const int64_t t = row % loop.length;
    const T* cos = loop.cos + t * loop.cos_stride;
    const T* sin = loop.sin + t * loop.sin_stride;
    const T* sin_of_left = sin + (loop.transposed ? half : 0);
    const T* sin_of_right = sin + (loop.transposed ? 0 : half);
    const T* input =
        loop.input + b * loop.input_strides[0] + t * loop.input_strides[2];
    T* output =
        loop.output + b * loop.output_strides[0] + t * loop.output_strides[2];
    for (int64_t h = 0; h < loop.heads; ++h) {
      const T* x = input + h * loop.input_strides[1];
      T* y = output + h * loop.output_strides[1];
      WEFT_VECTORS
      for (int64_t j = 0; j < half; ++j) {
        const Number left = widen(x[j]);
        const Number right = widen(x[j + half]);
        narrow(
            left * widen(cos[j]) - sign * right * widen(sin_of_left[j]), y[j]);
        narrow(
            right * widen(cos[j + half]) + sign * left * widen(sin_of_right[j]),
            y[j + half]);
      }
    }
  }
}

// ---- attention --------------------------------------------------------------

WEFT_INLINE int64_t seen_keys(const ScoreRows& rows, int64_t row) {
  const int64_t position = rows.begin + row % rows.queries;
  return rows.is_causal ? std::min(rows.keys, position + 1) : rows.keys;
}

WEFT_INLINE int64_t offset_of(const ScoreRows& rows, int64_t row) {
  return row / rows.queries * rows.head_stride +
         row % rows.queries * rows.stride;
}

WEFT_INLINE int64_t place_of(const ScoreRows& rows, int64_t row) {
  return row / rows.queries * rows.length + row % rows.queries;
}

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// Calls body(at, size, room) for each block of the seen part of a row of
// scores: its first element, the number of its elements that are seen, and the
// number of its elements that the row has.
template <class Body>
WEFT_INLINE void
for_each_seen_block(const ScoreRows& rows, int64_t seen, const Body& body) {
  for (int64_t at = 0; at < seen; at += kBlock) {
    body(at, std::min(kBlock, seen - at), std::min(kBlock, rows.stride - at));
  }
}

// Returns the end of the last block that for_each_seen_block() visits. The
// elements behind it have not been computed.
WEFT_INLINE int64_t end_of_seen_blocks(const ScoreRows& rows, int64_t seen) {
  return std::min((seen + kBlock - 1) / kBlock * kBlock, rows.stride);
}

WEFT_INLINE float
largest_of(const ScoreRows& rows, const float* row, int64_t seen) {
  alignas(64) float lanes[kBlock];
  std::fill_n(lanes, kBlock, kLeast);
  for_each_seen_block(
      rows, seen, [&](int64_t at, int64_t size, int64_t room) WEFT_LAMBDA {
        Block<float> numbers;
        const float* x = numbers.read(row + at, size, kLeast, room);
        WEFT_VECTORS
        for (int64_t i = 0; i < kBlock; ++i) {
          lanes[i] = larger(lanes[i], x[i]);
        }
      });
  return combine_lanes(
      lanes, [](float a, float b) WEFT_LAMBDA { return larger(a, b); });
}

WEFT_INLINE void
softmax_rows(const SoftmaxLoop& loop, int64_t first, int64_t last) {
  const float scale = loop.rows.scale;
  for (int64_t row = first; row < last; ++row) {
    float* scores = loop.scores + offset_of(loop.rows, row);
    const int64_t seen = seen_keys(loop.rows, row);
    const float largest = largest_of(loop.rows, scores, seen) * scale;
    alignas(64) float sums[kBlock] = {};
    for_each_seen_block(
        loop.rows,
        seen,
        [&](int64_t at, int64_t size, int64_t room) WEFT_LAMBDA {
          Block<float> numbers;
          // Reads -inf for the elements behind the seen part, so that their
          // exponentials are 0.
          const float* s = numbers.read(scores + at, size, kLeast, room);
          float* p = numbers.to_write(scores + at, room);
          WEFT_VECTORS
          for (int64_t i = 0; i < kBlock; ++i) {
            p[i] = exp_of(s[i] * scale - largest);
            sums[i] += p[i];
          }
          numbers.write(scores + at, room);
        });
    const float sum = sum_of_lanes(sums);
    const float inverse = 1 / sum;
    const int64_t end = end_of_seen_blocks(loop.rows, seen);
    for_each_block(end, [&](int64_t at, int64_t size) WEFT_LAMBDA {
      Block<float> numbers;
      const float* s = numbers.read(scores + at, size);
      float* p = numbers.to_write(scores + at, size);
      WEFT_VECTORS
      for (int64_t i = 0; i < kBlock; ++i) {
        p[i] = s[i] * inverse;
      }
      numbers.write(scores + at, size);
    });
    std::fill(scores + end, scores + loop.rows.stride, 0.0F);
    loop.logsumexp[place_of(loop.rows, row)] = largest + std::log(sum);
  }
}

WEFT_INLINE void
softmax_rows(const SoftmaxBackwardLoop& loop, int64_t first, int64_t last) {
  const float scale = loop.rows.scale;
  for (int64_t row = first; row < last; ++row) {
    float* scores = loop.scores + offset_of(loop.rows, row);
    float* grads = loop.grads + offset_of(loop.rows, row);
    const int64_t seen = seen_keys(loop.rows, row);
    const float logsumexp = loop.logsumexp[place_of(loop.rows, row)];
    // The sum of these lanes is the dot product of the row's output and its
    // gradient.
    alignas(64) float products[kBlock] = {};
    for_each_seen_block(
        loop.rows,
        seen,
        [&](int64_t at, int64_t size, int64_t room) WEFT_LAMBDA {
          Block<float> numbers, grad_numbers;
          const float* s = numbers.read(scores + at, size, kLeast, room);
          const float* d = grad_numbers.read(grads + at, size, 0, room);
          float* p = numbers.to_write(scores + at, room);
          WEFT_VECTORS
          for (int64_t i = 0; i < kBlock; ++i) {
            p[i] = exp_of(s[i] * scale - logsumexp);
            products[i] += p[i] * d[i];
          }
          numbers.write(scores + at, room);
        });
    const float delta = sum_of_lanes(products);
    for_each_seen_block(
        loop.rows,
        seen,
        [&](int64_t at, int64_t size, int64_t room) WEFT_LAMBDA {
          Block<float> numbers, grad_numbers;
          const float* p = numbers.read(scores + at, size, 0, room);
          const float* d = grad_numbers.read(grads + at, size, 0, room);
          float* target = grad_numbers.to_write(grads + at, room);
          WEFT_VECTORS
          for (int64_t i = 0; i < kBlock; ++i) {
            target[i] = p[i] * (d[i] - delta) * scale;
          }
          grad_numbers.write(grads + at, room);
        });
    const int64_t end = end_of_seen_blocks(loop.rows, seen);
    std::fill(scores + end, scores + loop.rows.stride, 0.0F);
    std::fill(grads + end, grads + loop.rows.stride, 0.0F);
  }
}

WEFT_INLINE uint32_t bits_of(c10::BFloat16 x) {
  return x.x;
}
WEFT_INLINE uint32_t bits_of(float x) {
  c10::BFloat16 narrowed(0, c10::BFloat16::from_bits());
  narrow(x, narrowed);
  return narrowed.x;
}

template <class T>
WEFT_INLINE void
pair_rows(const PairRowsLoop<T>& loop, int64_t first, int64_t last) {
  for (int64_t pair = first; pair < last; ++pair) {
    const T* low = loop.input + 2 * pair * loop.columns;
    const T* high = low + loop.columns;
    uint32_t* pairs = loop.pairs + pair * loop.columns;
    WEFT_VECTORS
    for (int64_t i = 0; i < loop.columns; ++i) {
      pairs[i] = bits_of(low[i]) | bits_of(high[i]) << 16;
    }
  }
}

} // namespace

WEFT_FOR_EACH_PROCESSOR
void run(const SoftmaxLoop& loop, int64_t first, int64_t last) {
  softmax_rows(loop, first, last);
}
WEFT_FOR_EACH_PROCESSOR
void run(const SoftmaxBackwardLoop& loop, int64_t first, int64_t last) {
  softmax_rows(loop, first, last);
}

WEFT_FOR_EACH_PROCESSOR
void run(const PairRowsLoop<float>& loop, int64_t first, int64_t last) {
  pair_rows(loop, first, last);
}
WEFT_FOR_EACH_PROCESSOR
void run(const PairRowsLoop<c10::BFloat16>& loop, int64_t first, int64_t last) {
  pair_rows(loop, first, last);
}

#define WEFT_DEFINE_LOOPS(T)                                                  \
  WEFT_FOR_EACH_PROCESSOR                                                     \
  void run(const SwigluLoop<T>& loop, int64_t first, int64_t last) {          \
    swiglu(loop, first, last);                                                \
  }                                                                           \
  WEFT_FOR_EACH_PROCESSOR                                                     \
  void run(const SwigluBackwardLoop<T>& loop, int64_t first, int64_t last) {  \
    swiglu(loop, first, last);                                                \
  }                                                                           \
  WEFT_FOR_EACH_PROCESSOR                                                     \
  void run(const RmsNormLoop<T>& loop, int64_t first, int64_t last) {         \
    rms_norm(loop, first, last);                                              \
  }                                                                           \
  WEFT_FOR_EACH_PROCESSOR                                                     \
  void run(const RmsNormBackwardLoop<T>& loop, int64_t first, int64_t last) { \
    rms_norm(loop, first, last);                                              \
  }                                                                           \
  WEFT_FOR_EACH_PROCESSOR                                                     \
  void run(const RotaryLoop<T>& loop, int64_t first, int64_t last) {          \
    rotary(loop, first, last);                                                \
  }
WEFT_FOR_EACH_DTYPE(WEFT_DEFINE_LOOPS)

} // namespace weft::dtensor::fused
