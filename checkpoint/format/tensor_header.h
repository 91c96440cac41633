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

/// A tensor as the header of a safetensors file describes it.
struct HeaderTensor {
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  /// Bytes of the file, the header counted.
  int64_t begin = 0;
  int64_t end = 0;
  /// Where it lies in the whole tensor, if the file says so.
  std::optional<std::vector<int64_t>> offset = std::nullopt;
  std::optional<std::vector<int64_t>> global_shape = std::nullopt;
};

/// The header of a safetensors file.
struct TensorHeader {
  /// Length prefix, JSON and padding.
  int64_t bytes = 0;
  std::map<std::string, HeaderTensor> tensors;
  /// Without DCP_SHARDING_INFO, which is in `tensors`.
  std::map<std::string, std::string> metadata;
};

/// Lays the tensors out in the file (sets `bytes`, `begin` and `end`) and
/// returns the header's bytes.
/// Throws: mesh::UsageError for what a reader would refuse.
std::string make_header(TensorHeader& header);

/// Reads the header's bytes, never more than the file has.
/// Throws: CheckpointError naming `source`.
std::string read_header(const File& file, const std::string& source);

/// Checks everything that can be checked without the data: limits, sizes, that
/// the tensors fill a file of `file_bytes` without gap or overlap.
/// Throws: CheckpointError naming `source` and the key or byte.
TensorHeader parse_header(
    std::string_view bytes,
    int64_t file_bytes,
    const std::string& source);

} // namespace weft::checkpoint
