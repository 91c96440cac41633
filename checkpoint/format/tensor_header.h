#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/files/folder.h"

namespace weft::checkpoint {

constexpr const char* kStepKey = "weft_step";

/// A tensor as described by the header of a safetensors file.
struct HeaderTensor {
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  /// The range of bytes in the file, counted from the start of its header.
  int64_t begin = 0;
  int64_t end = 0;
  /// The position in the full tensor, if the file records it.
  std::optional<std::vector<int64_t>> offset = std::nullopt;
  std::optional<std::vector<int64_t>> global_shape = std::nullopt;
};

/// The header of a safetensors file.
struct TensorHeader {
  /// The bytes of the length prefix, the JSON and the padding.
  int64_t bytes = 0;
  std::map<std::string, HeaderTensor> tensors;
  /// The metadata without DCP_SHARDING_INFO, which is in `tensors`.
  std::map<std::string, std::string> metadata;
};

/// Assigns positions to the tensors in the file (sets `bytes`, `begin` and
/// `end`) and returns the header's bytes.
/// Throws: mesh::UsageError if a reader would reject the header.
std::string make_header(TensorHeader& header);

/// Reads the header's bytes, but never more than the file has.
/// Throws: CheckpointError naming `source` if the header cannot be read.
std::string read_header(const File& file, const std::string& source);

/// Parses a header and checks everything that does not need the data: limits,
/// sizes, and that the tensors fill a file of `file_bytes` without gap or
/// overlap.
/// Throws: CheckpointError naming `source` and the key or byte if a check
/// fails.
TensorHeader parse_header(
    std::string_view bytes,
    int64_t file_bytes,
    const std::string& source);

} // namespace weft::checkpoint
