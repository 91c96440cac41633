#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/files/progress.h"
#include "hf/new_folder.h"

namespace weft::hf {

struct ExportOptions {
  /// The dtype of all tensors. Empty keeps the dtype of each tensor in the
  /// checkpoint.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// The maximum size of a file in bytes, unless a single tensor is larger; at
  /// least 1.
  int64_t max_shard_bytes = 5'000'000'000;
  /// Exports the EMA weights, if training kept them (ema.decay).
  bool averaged = false;
  checkpoint::Progress progress = {};
};

struct Exported {
  int64_t tensors = 0;
  int64_t files = 0;
  int64_t bytes = 0;
  /// The number of weights into which an adapter was merged.
  int64_t merged = 0;
  /// The files other than weights: config.json, tokenizers.
  std::vector<std::string> others;
  /// Notes for the user about unexpected results.
  std::vector<std::string> notes;
};

/// Returns "12 tensors, 1.5 MB in 1 file, beside config.json".
std::string describe(const Exported& exported);

/// Writes the model of a checkpoint as a new Hugging Face folder: config.json,
/// weights with merged adapters, and the tokenizer files of the original model
/// folder (model.from). `folder` appears complete or not at all. Verifies what
/// it reads; at most one tensor, or a part of a large one, is in memory.
/// Throws: mesh::UsageError if the checkpoint is not a language model of
/// Weft's, if an EMA is requested and the checkpoint has none, or if `folder`
/// exists;
/// checkpoint::CheckpointError if it is damaged; std::system_error with path
/// and errno.
Exported export_model(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& folder,
    const ExportOptions& options = {});

} // namespace weft::hf
