#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/files/progress.h"
#include "checkpoint/load/key_pattern.h"

namespace weft::recipes::hub {

struct ExportTensorsOptions {
  /// Patterns of base::matches_dotted(). Only tensors whose key matches one
  /// of `include` (empty: all do) and none of `exclude`.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  /// From the checkpoint's keys to names in the files.
  std::vector<checkpoint::RenameRule> rename = {};
  /// Of floating-point tensors; none: what each has in the checkpoint.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Bytes of tensors in one file of a folder, unless one tensor has more; at
  /// least 1.
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

/// Writes whole tensors of a checkpoint as plain safetensors files, which
/// appear whole or not at all: one file if `path` ends with ".safetensors",
/// else a folder of model.safetensors, or of several files and their index.
/// Verifies what it reads; a few MiB are in memory at a time.
/// Throws: mesh::UsageError if `path` exists, a pattern matches nothing, or two
/// tensors come to one name; checkpoint::CheckpointError if the checkpoint is
/// damaged; std::system_error with path and errno.
ExportedTensors export_tensors(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& path,
    const ExportTensorsOptions& options = {});

} // namespace weft::recipes::hub
