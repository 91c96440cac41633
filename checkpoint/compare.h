#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/progress.h"

namespace weft::checkpoint {

/// What differs between two checkpoints in one tensor or one value.
struct Difference {
  /// "step", "state.rng.seed", or a tensor's name.
  std::string name;
  /// "only in A", "dtype float32 vs float64", "3 of 16 elements differ...".
  std::string what;
  /// The rest only where the tensors have the same dtype and shape.
  int64_t elements = 0;
  /// Of the differing elements; infinite if one of them is not finite.
  double max_abs = 0;
  /// Of the first that differs, in row-major order.
  std::vector<int64_t> first;
};

struct Comparison {
  /// Sorted by name.
  std::vector<Difference> differences;
  /// Compared value by value.
  int64_t tensors = 0;
  int64_t bytes = 0;
};

/// Compares two step folders: step, `state`, and each tensor's name, dtype,
/// global shape and bits, however either is cut in chunks. Ignores times,
/// paths, versions, meshes, placements and `layout`. Verifies what it reads,
/// and holds a few MiB at a time. `hmac_key`: both must have been saved with
/// it, see parse_manifest(). Throws: CheckpointError if one is damaged;
/// mesh::UsageError if there is no such folder.
Comparison compare(
    const std::filesystem::path& a,
    const std::filesystem::path& b,
    std::string_view hmac_key = {},
    const Progress& progress = {});

} // namespace weft::checkpoint
