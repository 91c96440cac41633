#include "checkpoint/load/convert.h"

#include <cmath>
#include <span>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/rounding.h"

namespace weft::checkpoint {
namespace {

/// Holds all integers of 64-bit dtypes, with and without a sign.
using Wide = __int128;

/// The integers that can be converted to a dtype.
struct WholeRange {
  Wide low;
  Wide high;

  bool has(Wide value) const { return value >= low && value <= high; }
};

constexpr Wide power_of_two(int exponent) {
  return Wide(1) << exponent;
}

bool is_real(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ||
         at::isIntegralType(dtype, /*includeBool=*/true);
}

// Returns the integers that `dtype` can hold. For a floating-point dtype this
// is the range in which it holds all integers.
WholeRange range_of(at::ScalarType dtype) {
  const auto bits = static_cast<int>(8 * c10::elementSize(dtype));
  switch (dtype) {
    case at::kBool:
      return {0, 1};
    case at::kByte:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
      return {0, power_of_two(bits) - 1};
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return {-power_of_two(bits - 1), power_of_two(bits - 1) - 1};
    case at::kDouble:
      return {-power_of_two(53), power_of_two(53)};
    case at::kFloat:
      return {-power_of_two(24), power_of_two(24)};
    case at::kHalf:
      return {-power_of_two(11), power_of_two(11)};
    case at::kBFloat16:
      return {-power_of_two(8), power_of_two(8)};
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
      return {-16, 16};
    default:
      return {-8, 8};
  }
}

constexpr const char* kOp = "[checkpoint.load] ";
constexpr const char* kRemedy =
    " Load it as it was saved and convert it yourself.";

[[noreturn]] void refuse_text(
    const std::string& name,
    const std::string& value,
    at::ScalarType from,
    at::ScalarType to,
    const char* why) {
  TORCH_CHECK_VALUE(
      false,
      kOp,
      in_quotes(name),
      " holds ",
      value,
      " as ",
      plain_name(from),
      ", which ",
      why,
      " ",
      plain_name(to),
      ".",
      kRemedy);
}

[[noreturn]] void refuse_value(
    const std::string& name,
    double value,
    at::ScalarType from,
    at::ScalarType to,
    const char* why) {
  // Single precision avoids digits that the conversion to double has added.
  const bool is_single = at::isFloatingType(from) && from != at::kDouble;
  refuse_text(
      name,
      is_single ? fmt::format("{}", static_cast<float>(value))
                : fmt::format("{}", value),
      from,
      to,
      why);
}

at::Tensor
rounded(const at::Tensor& tensor, at::ScalarType to, const std::string& name) {
  try {
    return round_to(tensor, to, {.name = name});
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, kOp, error.what_without_backtrace(), kRemedy);
  }
}

// Checks the values of an integer tensor of dtype T, made from one of dtype
// `from`, exactly: doubles cannot hold all of them.
template <class T>
void check_integers(
    const at::Tensor& tensor,
    at::ScalarType from,
    at::ScalarType to,
    const std::string& name) {
  const auto range = range_of(to);
  const auto values = tensor.contiguous();
  for (const T value : std::span(
           values.const_data_ptr<T>(), static_cast<size_t>(values.numel()))) {
    if (!range.has(value)) {
      refuse_text(
          name, fmt::format("{}", value), from, to, "is out of the range of");
    }
  }
}

// Checks floating-point values that an integer dtype gets.
void check_floats(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name) {
  const auto from = tensor.scalar_type();
  const auto range = range_of(to);
  const double limit = std::ldexp(1.0, 100); // fits in Wide
  const auto values = tensor.to(at::kDouble).contiguous();
  for (const double value : std::span(
           values.const_data_ptr<double>(),
           static_cast<size_t>(values.numel()))) {
    if (value != std::trunc(value) || !std::isfinite(value)) {
      refuse_value(name, value, from, to, "is not an integer for");
    }
    if (std::abs(value) > limit || !range.has(static_cast<Wide>(value))) {
      refuse_value(name, value, from, to, "is out of the range of");
    }
  }
}

at::Tensor whole_numbers_to(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name) {
  const auto from = tensor.scalar_type();
  if (at::isFloatingType(from)) {
    check_floats(tensor, to, name);
  } else if (from == at::kUInt64) {
    check_integers<uint64_t>(tensor, from, to, name);
  } else {
    check_integers<int64_t>(tensor.to(at::kLong), from, to, name);
  }
  return tensor.to(to);
}

} // namespace

bool is_convertible(at::ScalarType from, at::ScalarType to) {
  return from == to ||
         (is_real(from) && is_real(to) && from != at::kFloat8_e8m0fnu &&
          to != at::kFloat8_e8m0fnu);
}

at::Tensor convert_exactly(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name) {
  const auto from = tensor.scalar_type();
  TORCH_INTERNAL_ASSERT(
      is_convertible(from, to), plain_name(from), " to ", plain_name(to));
  if (from == to) {
    return tensor;
  }
  return at::isFloatingType(from) && at::isFloatingType(to)
             ? rounded(tensor, to, name)
             : whole_numbers_to(tensor, to, name);
}

} // namespace weft::checkpoint
