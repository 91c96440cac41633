#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/files/progress.h"

namespace weft::hf {

struct Imported {
  /// The step folder.
  std::filesystem::path path;
  int64_t tensors = 0;
  int64_t bytes = 0;
  /// See ModelFiles::notice().
  std::string notice = {};
};

/// Writes the model of a Hugging Face folder as the checkpoint
/// `checkpoints`/step-0, with float32 weights. The checkpoint is an initial
/// model (checkpoint.init_from), not a run to resume. The weights of one file
/// (at most `max_file_bytes`, or one row of a tensor) are in memory at a time.
/// Throws: mesh::UsageError if the folder is not a supported model or step-0
/// exists; checkpoint::CheckpointError if a file is damaged; std::system_error
/// with path and errno.
Imported import_model(
    const std::filesystem::path& folder,
    const std::filesystem::path& checkpoints,
    int64_t max_file_bytes = int64_t{128} << 20,
    const checkpoint::Progress& progress = {});

} // namespace weft::hf
