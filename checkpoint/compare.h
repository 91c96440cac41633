#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/progress.h"

namespace weft::checkpoint {

/// A difference between two checkpoints in one tensor or one value.
struct Difference {
  /// The name: "step", "state.rng.seed", or that of a tensor.
  std::string name;
  /// The difference: "only in A", "dtype float32 vs float64", "3 of 16 elements
  /// differ...".
  std::string what;
  /// The number of differing elements. This member and the following ones are
  /// set only if both tensors have the same dtype and shape.
  int64_t elements = 0;
  /// The largest absolute difference. Infinite if one of the differing elements
  /// is not finite.
  double max_abs = 0;
  /// The index of the first differing element in row-major order.
  std::vector<int64_t> first;
};

struct Comparison {
  /// The differences, sorted by name.
  std::vector<Difference> differences;
  /// The number of tensors that were compared value by value, and their bytes.
  int64_t tensors = 0;
  int64_t bytes = 0;
};

/// Compares two step folders: step, `state`, and each tensor's name, dtype,
/// global shape and bits, independent of how either checkpoint is split in
/// chunks. Ignores times, paths, versions, meshes, placements and `layout`.
/// Verifies the data that it reads, and holds a few MiB at a time. With an
/// `hmac_key`, both must have been saved with it; see parse_manifest().
/// Throws: CheckpointError if a checkpoint is damaged; mesh::UsageError if a
/// folder does not exist.
Comparison compare(
    const std::filesystem::path& a,
    const std::filesystem::path& b,
    std::string_view hmac_key = {},
    const Progress& progress = {});

} // namespace weft::checkpoint
