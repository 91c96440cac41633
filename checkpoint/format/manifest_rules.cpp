#include "checkpoint/format/manifest_rules.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/tiling.h"

namespace weft::checkpoint {
namespace {

using Ranges = std::map<std::string, std::vector<std::pair<int64_t, int64_t>>>;
using RuleViolation = std::optional<std::string>;

RuleViolation file_error(
    const std::string& name,
    const FileRecord& file,
    bool has_no_hashes) {
  // The smallest header: 8 bytes of length and "{}", which Weft pads to 8
  // bytes.
  const int64_t least = has_no_hashes ? 10 : 16;
  const int64_t alignment = has_no_hashes ? 1 : 8;
  if (!is_plain_file_name(name) || !name.ends_with(".safetensors")) {
    return fmt::format(
        "{} cannot be the name of a tensor file", in_quotes(name));
  }
  if (file.header_bytes < least || file.header_bytes % alignment != 0 ||
      file.header_bytes > limits::kHeaderBytes + 8 ||
      file.bytes < file.header_bytes) {
    return fmt::format(
        "file {}: a header of {} bytes in {} bytes",
        name,
        file.header_bytes,
        file.bytes);
  }
  return std::nullopt;
}

// Rejects names that differ in case only. On a case-insensitive file system,
// one of the files would replace the other.
RuleViolation case_error(const Manifest& manifest) {
  std::unordered_map<std::string, std::string_view> names;
  for (const auto& [name, file] : manifest.files) {
    auto lower = name;
    std::ranges::transform(lower, lower.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const auto [other, is_new] = names.emplace(std::move(lower), name);
    if (!is_new) {
      return fmt::format(
          "files {} and {} differ in case only", other->second, name);
    }
  }
  return std::nullopt;
}

RuleViolation offset_error(const TensorRecord& tensor, const Chunk& chunk) {
  const auto dims = tensor.shape.size();
  bool inside = chunk.offset.size() == dims && chunk.shape.size() == dims;
  const bool whole_is_empty = element_count(tensor.shape) == 0;
  for (size_t d = 0; inside && d < dims; ++d) {
    inside = chunk.shape[d] >= (whole_is_empty ? 0 : 1) &&
             chunk.offset[d] >= 0 && chunk.shape[d] <= tensor.shape[d] &&
             chunk.offset[d] <= tensor.shape[d] - chunk.shape[d];
  }
  if (!inside) {
    return fmt::format(
        "the chunk {} at {} is not inside {}",
        to_text(chunk.shape),
        to_text(chunk.offset),
        to_text(tensor.shape));
  }
  return std::nullopt;
}

// Requires one xxh3 per piece, and a SHA-256 for all pieces or for none.
RuleViolation hash_error(const Manifest& manifest, const Chunk& chunk) {
  const auto bytes = chunk.end - chunk.begin;
  const auto pieces =
      manifest.has_no_hashes
          ? 0
          : bytes / manifest.piece_bytes + (bytes % manifest.piece_bytes != 0);
  for (const auto count :
       {chunk.piece_hashes.size(),
        chunk.piece_sha256.empty() ? chunk.piece_hashes.size()
                                   : chunk.piece_sha256.size()}) {
    if (static_cast<int64_t>(count) != pieces) {
      return fmt::format(
          "{} hashes for {} pieces at byte {} of {}",
          count,
          pieces,
          chunk.begin,
          chunk.file);
    }
  }
  return std::nullopt;
}

RuleViolation chunk_error(
    const Manifest& manifest,
    const TensorRecord& tensor,
    const Chunk& chunk) {
  if (auto fault = offset_error(tensor, chunk)) {
    return fault;
  }
  const auto file = manifest.files.find(chunk.file);
  if (file == manifest.files.end()) {
    return fmt::format("file {} is not in the list", in_quotes(chunk.file));
  }
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const auto count = element_count(chunk.shape);
  if (chunk.begin < file->second.header_bytes || chunk.end < chunk.begin ||
      chunk.end > file->second.bytes || (chunk.end - chunk.begin) % item != 0 ||
      (chunk.end - chunk.begin) / item != count) {
    return fmt::format(
        "bytes {} to {} of {} cannot hold {} {}",
        chunk.begin,
        chunk.end,
        chunk.file,
        plain_name(tensor.dtype),
        to_text(chunk.shape));
  }
  return hash_error(manifest, chunk);
}

RuleViolation tensor_error(
    const Manifest& manifest,
    const std::string& name,
    const TensorRecord& tensor) {
  std::string why;
  if (!is_tensor_name(name, why)) {
    return why;
  }
  if (static_cast<int64_t>(tensor.shape.size()) > limits::kDims) {
    return fmt::format(
        "the shape has {} dims, but at most {} are allowed",
        tensor.shape.size(),
        limits::kDims);
  }
  format_name(tensor.dtype); // throws if the format has no such dtype
  const auto count = element_count(tensor.shape);
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  if (count < 0 || count > (int64_t{1} << 62) / item) {
    return fmt::format("{} is too large", to_text(tensor.shape));
  }
  std::unordered_set<std::string_view> files;
  for (const auto& chunk : tensor.chunks) {
    if (auto fault = chunk_error(manifest, tensor, chunk)) {
      return fault;
    }
    if (!files.insert(chunk.file).second) {
      return fmt::format("it is repeated in {}", chunk.file);
    }
  }
  if (count > 0) {
    return tiling_error(tensor.shape, tensor.chunks);
  }
  if (tensor.chunks.size() > 1 ||
      (tensor.chunks.size() == 1 && tensor.chunks[0].shape != tensor.shape)) {
    return fmt::format("{} has no elements to shard", to_text(tensor.shape));
  }
  return std::nullopt;
}

} // namespace

std::optional<std::string> find_violation(const Manifest& manifest) {
  constexpr int64_t kSteps = 1'000'000'000'000'000'000;
  if (manifest.step < 0 || manifest.step >= kSteps) {
    return fmt::format("step {}", manifest.step);
  }
  if (manifest.piece_bytes < limits::kMinPieceBytes ||
      manifest.piece_bytes > limits::kMaxPieceBytes) {
    return fmt::format(
        "piece_bytes {}: {} to {} are allowed",
        manifest.piece_bytes,
        limits::kMinPieceBytes,
        limits::kMaxPieceBytes);
  }
  if (manifest.tensors.size() > static_cast<size_t>(limits::kTensors)) {
    return fmt::format(
        "{} tensors; at most {} are allowed",
        manifest.tensors.size(),
        limits::kTensors);
  }
  for (const auto& [name, file] : manifest.files) {
    if (auto fault = file_error(name, file, manifest.has_no_hashes)) {
      return fault;
    }
  }
  if (auto fault = case_error(manifest); fault && !manifest.has_no_hashes) {
    return fault;
  }
  Ranges ranges;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (auto fault = tensor_error(manifest, name, tensor)) {
      return fmt::format("tensor {}: {}", in_quotes(name), *fault);
    }
    for (const auto& chunk : tensor.chunks) {
      ranges[chunk.file].emplace_back(chunk.begin, chunk.end);
    }
  }
  for (const auto& [name, file] : manifest.files) {
    if (auto fault = range_error(file, ranges[name])) {
      return fmt::format("file {}: {}", name, *fault);
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_missing_sha256(const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    if (!file.header_sha256) {
      return fmt::format("file {}: its header has no SHA-256", name);
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& chunk : tensor.chunks) {
      if (chunk.piece_sha256.size() != chunk.piece_hashes.size()) {
        return fmt::format(
            "tensor {}: its pieces in {} have no SHA-256",
            in_quotes(name),
            chunk.file);
      }
    }
  }
  return std::nullopt;
}

} // namespace weft::checkpoint
