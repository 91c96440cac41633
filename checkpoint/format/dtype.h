#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace weft::checkpoint {

/// Returns the name of a dtype in safetensors files and manifests ("F32",
/// "BF16").
/// Throws: mesh::UsageError if the format does not have the dtype (quantized,
/// packed, and complex types other than complex64).
std::string format_name(at::ScalarType dtype);
std::optional<at::ScalarType> from_format_name(std::string_view name);

/// Returns the dtype's name in PyTorch: "float32", "bfloat16".
std::string plain_name(at::ScalarType dtype);

} // namespace weft::checkpoint
