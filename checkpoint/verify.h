#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/progress.h"

namespace weft::checkpoint {

/// One defect of a checkpoint.
struct Corruption {
  /// The file. Empty if the defect concerns the folder.
  std::string file;
  /// The tensor. Empty if the defect is not in a tensor's data.
  std::string tensor;
  /// The offset in the file of the piece that contains the first bad byte. -1
  /// if the defect concerns the entire file.
  int64_t offset = -1;
  std::string what;
};

/// Returns "shard-00000-00000.safetensors: tensor "w" at byte 4096: ...".
std::string to_string(const Corruption& damage);

/// Reads every byte of every file of a step folder and returns all defects that
/// it can find. Empty if there are none. With an `hmac_key`, checks the
/// manifest's HMAC; see parse_manifest().
/// Throws: mesh::UsageError if the folder does not exist.
std::vector<Corruption> verify(
    const std::filesystem::path& step_folder,
    std::string_view hmac_key = {},
    const Progress& progress = {});

} // namespace weft::checkpoint
