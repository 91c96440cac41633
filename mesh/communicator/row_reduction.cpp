#include "mesh/communicator/row_reduction.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <type_traits>

#include <Eigen/Core>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/for_each_processor.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

// Sums of so many elements stay in the first cache.
constexpr int64_t kBlock = 2048;

template <class T>
using Row = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using MutableRow = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

// Eigen converts halves one by one unless the compiler may assume newer
// instructions; these loops are compiled for older and newer processors.
#if defined(__x86_64__)
#define WEFT_F16C __attribute__((target("f16c")))
// Every processor with AVX2 has it, and clang 16 cannot ask for it by name.
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

// To nearest, ties to even.
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

struct Add {
  template <class A, class B>
  static auto apply(const A& a, const B& b) {
    return a + b;
  }
};
struct Multiply {
  template <class A, class B>
  static auto apply(const A& a, const B& b) {
    return a * b;
  }
};
// What is not a number stays none.
struct Least {
  template <class A, class B>
  static auto apply(const A& a, const B& b) {
    return a.binaryExpr(b, [](const auto& x, const auto& y) {
      return x < y || x != x ? x : y;
    });
  }
};
struct Most {
  template <class A, class B>
  static auto apply(const A& a, const B& b) {
    return a.binaryExpr(b, [](const auto& x, const auto& y) {
      return x > y || x != x ? x : y;
    });
  }
};

struct Job {
  void* output;
  const void* const* rows;
  int64_t num_rows;
  int64_t count;
  bool average;
};

// Elements of a row in the type that they are summed in.
template <class T>
const SumOf<T>* load(const T* from, int64_t count, SumOf<T>* buffer) {
  if constexpr (is_narrow<T>) {
    widen(from, count, buffer);
    return buffer;
  } else {
    return from;
  }
}

template <class T>
void store(const SumOf<T>* from, int64_t count, T* to) {
  if constexpr (is_narrow<T>) {
    narrow(from, count, to);
  } else {
    MutableRow<T>(to, count) = Row<T>(from, count);
  }
}

// Part by part: how a complex number is divided by one depends on whether a
// vector holds it.
template <class T>
void divide(T* sums, int64_t count, int64_t by) {
  if constexpr (Eigen::NumTraits<T>::IsComplex) {
    using Part = typename T::value_type;
    MutableRow<Part>(reinterpret_cast<Part*>(sums), 2 * count) /=
        static_cast<Part>(by);
  } else {
    MutableRow<T>(sums, count) /= static_cast<T>(by);
  }
}

template <class T, class Combine>
void reduce(const Job& job) {
  using Sum = SumOf<T>;
  alignas(64) Sum sums[kBlock];
  alignas(64) Sum widened[kBlock];
  for (int64_t begin = 0; begin < job.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, job.count - begin);
    const auto row = [&](int64_t index) {
      const auto* values = static_cast<const T*>(job.rows[index]) + begin;
      return Row<Sum>(load(values, n, widened), n);
    };
    T* const output = static_cast<T*>(job.output) + begin;
    if constexpr (!is_narrow<T>) {
      if (job.num_rows == 2 && !job.average) {
        MutableRow<T>(output, n) = Combine::apply(row(0), row(1));
        continue;
      }
    }
    MutableRow<Sum> sum(sums, n);
    sum = row(0);
    for (int64_t index = 1; index < job.num_rows; ++index) {
      sum = Combine::apply(sum, row(index));
    }
    if (job.average) {
      divide(sums, n, job.num_rows);
    }
    store(sums, n, output);
  }
}

template <class T>
void reduce_by(const Job& job, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce<T, Add>(job);
    case ReduceOp::kProduct:
      return reduce<T, Multiply>(job);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if constexpr (!Eigen::NumTraits<SumOf<T>>::IsComplex) {
        return op == ReduceOp::kMin ? reduce<T, Least>(job)
                                    : reduce<T, Most>(job);
      }
  }
  throw_error<c10::ValueError>(
      "[reduce] Minimum and maximum are not defined for complex numbers.");
}

// True is one, so "or" is the greater and "and" the lesser.
ReduceOp of_booleans(ReduceOp op) {
  const bool is_or = op == ReduceOp::kSum || op == ReduceOp::kMax;
  return is_or ? ReduceOp::kMax : ReduceOp::kMin;
}

// Calls `use` with a value of the type that `dtype` is stored as.
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
    reduce_by<decltype(value)>(job, kind);
    return true;
  });
  if (!known) {
    throw_error<c10::ValueError>(detail::concat(
        "[reduce] ", dtype, " cannot be reduced between ranks."));
  }
}

} // namespace weft::mesh
