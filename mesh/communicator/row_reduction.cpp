#include "mesh/communicator/row_reduction.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/for_each_processor.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

// The elements per block, so few that their sums stay in the L1 cache.
constexpr int64_t kBlock = 2048;

// Compilers convert half-precision values one by one unless they may use newer
// instructions. So these loops are compiled for older and newer processors.
#if defined(__x86_64__)
#define WEFT_F16C __attribute__((target("f16c")))
// AVX2 stands for F16C: every processor with AVX2 has it, and clang 16 does not
// accept the name "f16c" here.
bool can_use_f16c() {
  return __builtin_cpu_supports("avx2") != 0;
}
#else
#define WEFT_F16C
bool can_use_f16c() {
  return true;
}
#endif

WEFT_FOR_EACH_PROCESSOR void
widen(const c10::BFloat16* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(uint32_t{from[i].x} << 16);
  }
}

// Rounds to nearest, ties to even.
WEFT_FOR_EACH_PROCESSOR void
narrow(const float* from, int64_t count, c10::BFloat16* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    to[i].x = static_cast<uint16_t>(from[i] != from[i] ? 0x7FC0 : rounded);
  }
}

WEFT_F16C void widen_at_once(const c10::Half* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<_Float16>(from[i].x);
  }
}

WEFT_F16C void narrow_at_once(const float* from, int64_t count, c10::Half* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i].x = std::bit_cast<uint16_t>(static_cast<_Float16>(from[i]));
  }
}

void widen(const c10::Half* from, int64_t count, float* to) {
  if (can_use_f16c()) {
    widen_at_once(from, count, to);
  } else {
    std::copy_n(from, count, to);
  }
}

void narrow(const float* from, int64_t count, c10::Half* to) {
  if (can_use_f16c()) {
    narrow_at_once(from, count, to);
  } else {
    std::copy_n(from, count, to);
  }
}

template <class T>
constexpr bool is_narrow =
    std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
template <class T>
using SumOf = std::conditional_t<is_narrow<T>, float, T>;

template <class T>
constexpr auto unsigned_of() {
  if constexpr (std::is_integral_v<T>) {
    return std::common_type_t<unsigned, std::make_unsigned_t<T>>();
  } else {
    return T();
  }
}
// The type in which values of T are added and multiplied. Integers use an
// unsigned type, so that they wrap around.
template <class T>
using Modular = decltype(unsigned_of<T>());

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(Modular<T>(a) + Modular<T>(b));
  }
};
struct Multiply {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(Modular<T>(a) * Modular<T>(b));
  }
};
// Least and Most return NaN if an operand is NaN.
struct Least {
  template <class T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Most {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

WEFT_FOR_EACH_PROCESSOR void
add(const float* a, const float* b, int64_t count, float* to) {
  WEFT_IVDEP
  for (int64_t i = 0; i < count; ++i) {
    to[i] = a[i] + b[i];
  }
}

WEFT_FOR_EACH_PROCESSOR void
add(const double* a, const double* b, int64_t count, double* to) {
  WEFT_IVDEP
  for (int64_t i = 0; i < count; ++i) {
    to[i] = a[i] + b[i];
  }
}

// `to` may be `a` or `b`.
template <class Op, class T>
void combine(const T* a, const T* b, int64_t count, T* to) {
  if constexpr (std::is_same_v<Op, Add> && std::is_floating_point_v<T>) {
    add(a, b, count, to);
  } else if constexpr (std::is_arithmetic_v<T>) {
    WEFT_IVDEP
    for (int64_t i = 0; i < count; ++i) {
      to[i] = Op::apply(a[i], b[i]);
    }
  } else {
    // Compilers do not vectorize products of complex numbers.
    std::transform(a, a + count, b, to, Op::template apply<T>);
  }
}

struct Job {
  void* output;
  const void* const* rows;
  int64_t num_rows;
  int64_t count;
  bool average;
};

// Returns the elements in the type in which they are summed: `from`, or
// `buffer` with the widened elements.
template <class T>
const SumOf<T>* load(const T* from, int64_t count, SumOf<T>* buffer) {
  if constexpr (is_narrow<T>) {
    widen(from, count, buffer);
    return buffer;
  } else {
    return from;
  }
}

template <class T, class Op>
void reduce(const Job& job) {
  using Sum = SumOf<T>;
  alignas(64) Sum sums[kBlock];
  alignas(64) Sum widened[kBlock];
  for (int64_t begin = 0; begin < job.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, job.count - begin);
    const auto row = [&](int64_t index, Sum* buffer) {
      return load(static_cast<const T*>(job.rows[index]) + begin, n, buffer);
    };
    T* const output = static_cast<T*>(job.output) + begin;
    // The output may be a later row, so only the last operation writes to it.
    Sum* last = sums;
    if constexpr (!is_narrow<T>) {
      last = output;
    }
    const Sum* sum = row(0, sums);
    for (int64_t index = 1; index < job.num_rows; ++index) {
      const bool is_last = index + 1 == job.num_rows && !job.average;
      Sum* const to = is_last ? last : sums;
      combine<Op>(sum, row(index, widened), n, to);
      sum = to;
    }
    if (job.average) {
      const auto divide = [by = static_cast<Sum>(job.num_rows)](Sum x) {
        return static_cast<Sum>(x / by);
      };
      std::transform(sum, sum + n, last, divide);
    }
    if constexpr (is_narrow<T>) {
      narrow(sums, n, output);
    } else if (job.num_rows == 1 && !job.average && sum != output) {
      std::copy_n(sum, n, output);
    }
  }
}

// The unnamed argument only selects the type of the rows.
template <class T>
void reduce_by(const Job& job, ReduceOp op, T) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce<T, Add>(job);
    case ReduceOp::kProduct:
      return reduce<T, Multiply>(job);
    case ReduceOp::kMin:
      return reduce<T, Least>(job);
    case ReduceOp::kMax:
      return reduce<T, Most>(job);
  }
}

template <class Part>
void reduce_by(const Job& job, ReduceOp op, std::complex<Part>) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: {
      // Real and imaginary parts are added, and divided by a real number,
      // separately.
      Job parts = job;
      parts.count *= 2;
      return reduce<Part, Add>(parts);
    }
    case ReduceOp::kProduct:
      return reduce<std::complex<Part>, Multiply>(job);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      throw_error<c10::ValueError>(
          "[reduce] Minimum and maximum are not defined for complex numbers.");
  }
}

// Booleans are stored as 0 and 1, so "or" is a maximum and "and" a minimum.
ReduceOp of_booleans(ReduceOp op) {
  const bool is_or = op == ReduceOp::kSum || op == ReduceOp::kMax;
  return is_or ? ReduceOp::kMax : ReduceOp::kMin;
}

// Calls `use` with a value of the C++ type of `dtype`. Returns false if there
// is no such type.
template <class Use>
bool with_type(c10::ScalarType dtype, const Use& use) {
  switch (dtype) {
    case c10::kFloat:
      return use(float());
    case c10::kDouble:
      return use(double());
    case c10::kHalf:
      return use(c10::Half());
    case c10::kBFloat16:
      return use(c10::BFloat16());
    case c10::kComplexFloat:
      return use(std::complex<float>());
    case c10::kComplexDouble:
      return use(std::complex<double>());
    case c10::kBool:
    case c10::kByte:
      return use(uint8_t());
    case c10::kChar:
      return use(int8_t());
    case c10::kShort:
      return use(int16_t());
    case c10::kInt:
      return use(int32_t());
    case c10::kLong:
      return use(int64_t());
    case c10::kUInt16:
      return use(uint16_t());
    case c10::kUInt32:
      return use(uint32_t());
    case c10::kUInt64:
      return use(uint64_t());
    default:
      return false;
  }
}

} // namespace

bool can_reduce(c10::ScalarType dtype) {
  return with_type(dtype, [](auto) { return true; });
}

void reduce_row_pointers(
    void* output,
    const void* const* rows,
    int64_t num_rows,
    int64_t count,
    c10::ScalarType dtype,
    ReduceOp op) {
  const Job job{output, rows, num_rows, count, op == ReduceOp::kAvg};
  const auto kind = dtype == c10::kBool ? of_booleans(op) : op;
  const bool known = with_type(dtype, [&](auto value) {
    reduce_by(job, kind, value);
    return true;
  });
  if (!known) {
    throw_error<c10::ValueError>(detail::concat(
        "[reduce] ", dtype, " cannot be reduced between ranks."));
  }
}

} // namespace weft::mesh
