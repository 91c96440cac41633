#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/files/progress.h"
#include "checkpoint/load/key_pattern.h"

namespace weft::hf {

struct ExportTensorsOptions {
  /// Patterns of base::matches_dotted(). Exports tensors whose key matches one
  /// of `include` (empty: all keys) and none of `exclude`.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  /// The rules from checkpoint keys to names in the files.
  std::vector<checkpoint::RenameRule> rename = {};
  /// The dtype of floating-point tensors. Empty keeps the dtype in the
  /// checkpoint.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// The maximum size of a file of a folder in bytes, unless a single tensor is
  /// larger; at least 1.
  int64_t max_shard_bytes = 5'000'000'000;
  /// See checkpoint::parse_manifest().
  std::string hmac_key = {};
  checkpoint::Progress progress = {};
};

struct ExportedTensors {
  int64_t tensors = 0;
  int64_t files = 0;
  int64_t bytes = 0;
};

/// Writes full tensors of a checkpoint as safetensors: one file if `path` ends
/// with ".safetensors", otherwise a folder with model.safetensors, or with
/// several files and their index. The output appears complete or not at all.
/// Verifies what it reads; uses a few MiB of memory.
/// Throws: mesh::UsageError if `path` exists, a pattern has no match, or two
/// tensors get the same name; checkpoint::CheckpointError if the checkpoint is
/// damaged; std::system_error with path and errno.
ExportedTensors export_tensors(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& path,
    const ExportTensorsOptions& options = {});

} // namespace weft::hf
