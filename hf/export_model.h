#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/files/progress.h"
#include "hf/new_folder.h"

namespace weft::recipes::hub {

struct ExportOptions {
  /// None: what each tensor has in the checkpoint.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Bytes of tensors in one file, unless one tensor has more; at least 1.
  int64_t max_shard_bytes = 5'000'000'000;
  /// The running average of the weights, where training kept one (ema.decay).
  bool averaged = false;
  checkpoint::Progress progress = {};
};

struct Exported {
  int64_t tensors = 0;
  int64_t files = 0;
  int64_t bytes = 0;
  /// How many weights had an adapter, which is part of them now.
  int64_t merged = 0;
  /// Files beside the weights: config.json, tokenizers.
  std::vector<std::string> others;
  /// What a user might not expect.
  std::vector<std::string> notes;
};

/// "12 tensors, 1.5 MB in 1 file, beside config.json".
std::string describe(const Exported& exported);

/// Writes the model of a checkpoint as a new Hugging Face folder, `folder`,
/// which appears whole or not at all: config.json, weights with adapters
/// merged into them, and the tokenizer files of the folder that the model came
/// from (model.from). Verifies what it reads; one tensor is in memory at a
/// time, and of a large one a part.
/// Throws: mesh::UsageError if the checkpoint holds no language model of ours,
/// no average where one is asked for, or `folder` exists;
/// checkpoint::CheckpointError if it is damaged; std::system_error with path
/// and errno.
Exported export_model(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& folder,
    const ExportOptions& options = {});

} // namespace weft::recipes::hub
