#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/progress.h"
#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

struct ImportOptions {
  int64_t step = 0;
  /// A tensor's key in the checkpoint, for its name in the files. Empty: the
  /// same.
  std::function<std::string(const std::string& name)> key_of = {};
  /// Of tensors in one file, unless one tensor has more.
  int64_t max_file_bytes = int64_t{4} << 30;
  bool sync = true;
  /// As SaverOptions'.
  bool sha256 = false;
  std::string hmac_key = {};
  Progress progress = {};
};

struct ImportedTensors {
  /// The step folder.
  std::filesystem::path path;
  int64_t tensors = 0;
  int64_t files = 0;
  /// Of the files.
  int64_t bytes = 0;
};

/// Writes the tensors that describe_safetensors() found in `source` as a
/// checkpoint, `checkpoints`/step-<step>, in their dtypes and with hashes from
/// here on. A few MiB are in memory at a time.
/// Throws: mesh::UsageError if two tensors come to one key, a key has no part
/// ("model." before the name), or the step exists; CheckpointError if a file
/// has changed since; std::system_error with path and errno.
ImportedTensors import_tensors(
    const Folder& source,
    const Manifest& foreign,
    const std::filesystem::path& checkpoints,
    const ImportOptions& options = {});

} // namespace weft::checkpoint
