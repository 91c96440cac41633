#include "checkpoint/load/convert.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/rounding.h"

namespace weft::checkpoint {
namespace {

/// The integers that can be converted to a dtype. The bounds are exact as
/// doubles, except that `high` of a 64-bit dtype is rounded up by 1.
struct WholeRange {
  double low;
  double high;
};

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
      return {0, std::ldexp(1.0, bits) - 1};
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return {-std::ldexp(1.0, bits - 1), std::ldexp(1.0, bits - 1) - 1};
    case at::kDouble:
      return {-std::ldexp(1.0, 53), std::ldexp(1.0, 53)};
    case at::kFloat:
      return {-std::ldexp(1.0, 24), std::ldexp(1.0, 24)};
    case at::kHalf:
      return {-std::ldexp(1.0, 11), std::ldexp(1.0, 11)};
    case at::kBFloat16:
      return {-std::ldexp(1.0, 8), std::ldexp(1.0, 8)};
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
      return {-16, 16};
    default:
      return {-8, 8};
  }
}

// Returns true if the range contains the value. Rejects 2^63 and more, because
// such a double can stand for an integer that was rounded up.
bool is_inside(double value, const WholeRange& range) {
  return value >= range.low && value <= range.high &&
         (std::abs(value) < std::ldexp(1.0, 63) || value == range.low);
}

constexpr const char* kOp = "[checkpoint.load] ";
constexpr const char* kRemedy =
    " Load it as it was saved and convert it yourself.";

[[noreturn]] void refuse_value(
    const std::string& name,
    double value,
    at::ScalarType from,
    at::ScalarType to,
    const char* why) {
  // Single precision avoids digits that the conversion to double has added.
  const bool is_single = at::isFloatingType(from) && from != at::kDouble;
  TORCH_CHECK_VALUE(
      false,
      kOp,
      in_quotes(name),
      " holds ",
      is_single ? fmt::format("{}", static_cast<float>(value))
                : fmt::format("{}", value),
      " as ",
      plain_name(from),
      ", which ",
      why,
      " ",
      plain_name(to),
      ".",
      kRemedy);
}

at::Tensor
rounded(const at::Tensor& tensor, at::ScalarType to, const std::string& name) {
  try {
    return round_to(tensor, to, {.name = name});
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, kOp, error.what_without_backtrace(), kRemedy);
  }
}

at::Tensor whole_numbers_to(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name) {
  const auto from = tensor.scalar_type();
  const auto range = range_of(to);
  const auto values = tensor.to(at::kDouble).contiguous().view({-1});
  const auto* value = values.const_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (value[i] != std::trunc(value[i]) || !std::isfinite(value[i])) {
      refuse_value(name, value[i], from, to, "is not an integer for");
    }
    if (!is_inside(value[i], range)) {
      refuse_value(name, value[i], from, to, "is out of the range of");
    }
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
