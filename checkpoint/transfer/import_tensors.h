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
  /// Returns a tensor's key in the checkpoint, given its name in the files. An
  /// empty function keeps the names.
  std::function<std::string(const std::string& name)> key_of = {};
  /// The limit for the bytes of tensors in one file. A larger tensor gets a
  /// file of its own.
  int64_t max_file_bytes = int64_t{4} << 30;
  bool fsync = true;
  /// The options SaverOptions::sha256 and SaverOptions::hmac_key.
  bool sha256 = false;
  std::string hmac_key = {};
  Progress progress = {};
};

struct ImportedTensors {
  /// The step folder.
  std::filesystem::path path;
  int64_t tensors = 0;
  int64_t files = 0;
  /// The bytes of the files.
  int64_t bytes = 0;
};

/// Writes the tensors that describe_safetensors() found in `source` as the
/// checkpoint `checkpoints`/step-<step>, with unchanged dtypes, and adds
/// hashes. Holds a few MiB at a time.
/// Throws: mesh::UsageError if two tensors get the same key, a key has no part
/// ("model." before the name), or the step exists; CheckpointError if a file
/// has changed since it was described; std::system_error with path and errno.
ImportedTensors import_tensors(
    const Folder& source,
    const Manifest& foreign,
    const std::filesystem::path& checkpoints,
    const ImportOptions& options = {});

} // namespace weft::checkpoint
