#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/progress.h"

namespace weft::checkpoint {

/// One thing that is wrong with a checkpoint.
struct Corruption {
  /// Empty: the folder as a whole.
  std::string file;
  /// Empty: no tensor's data.
  std::string tensor;
  /// Of the first bad byte's piece in the file; -1: the file as a whole.
  int64_t offset = -1;
  std::string what;
};

/// "shard-00000-00000.safetensors: tensor "w" at byte 4096: ...".
std::string to_string(const Corruption& damage);

/// Reads every byte of every file of a step folder and reports all damages that
/// it can find; none if it is sound. `hmac_key`: see parse_manifest().
/// Throws: mesh::UsageError if there is no such folder.
std::vector<Corruption> verify(
    const std::filesystem::path& step_folder,
    std::string_view hmac_key = {},
    const Progress& progress = {});

} // namespace weft::checkpoint
