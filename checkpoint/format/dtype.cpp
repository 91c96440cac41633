#include "checkpoint/format/dtype.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

struct Name {
  at::ScalarType dtype;
  std::string_view format;
  std::string_view plain;
};

constexpr std::array kNames = {
    Name{at::kBool, "BOOL", "bool"},
    Name{at::kByte, "U8", "uint8"},
    Name{at::kChar, "I8", "int8"},
    Name{at::kUInt16, "U16", "uint16"},
    Name{at::kShort, "I16", "int16"},
    Name{at::kUInt32, "U32", "uint32"},
    Name{at::kInt, "I32", "int32"},
    Name{at::kUInt64, "U64", "uint64"},
    Name{at::kLong, "I64", "int64"},
    Name{at::kHalf, "F16", "float16"},
    Name{at::kBFloat16, "BF16", "bfloat16"},
    Name{at::kFloat, "F32", "float32"},
    Name{at::kDouble, "F64", "float64"},
    Name{at::kComplexFloat, "C64", "complex64"},
    Name{at::kFloat8_e4m3fn, "F8_E4M3", "float8_e4m3fn"},
    Name{at::kFloat8_e5m2, "F8_E5M2", "float8_e5m2"},
    Name{at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    Name{at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    Name{at::kFloat8_e8m0fnu, "F8_E8M0", "float8_e8m0fnu"},
};

} // namespace

std::string format_name(at::ScalarType dtype) {
  const auto* found = std::ranges::find(kNames, dtype, &Name::dtype);
  if (found == kNames.end()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] safetensors does not support dtype {}. Convert the "
        "tensor to another dtype before you save it.",
        c10::toString(dtype)));
  }
  return std::string(found->format);
}

std::optional<at::ScalarType> from_format_name(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &Name::format);
  return found == kNames.end() ? std::nullopt : std::optional(found->dtype);
}

std::string plain_name(at::ScalarType dtype) {
  const auto* found = std::ranges::find(kNames, dtype, &Name::dtype);
  return found == kNames.end() ? c10::toString(dtype)
                               : std::string(found->plain);
}

} // namespace weft::checkpoint
