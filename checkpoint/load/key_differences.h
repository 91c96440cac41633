#pragma once

#include <string>
#include <vector>

namespace weft::checkpoint {

/// Where the tensors of two sides do not fit each other.
struct KeyDifferences {
  /// Wanted and not there; there and not wanted.
  std::vector<std::string> missing = {};
  std::vector<std::string> unexpected = {};
  /// "\"model.a\" [2] float32 vs [4] float32".
  std::vector<std::string> mismatched = {};

  bool empty() const {
    return missing.empty() && unexpected.empty() && mismatched.empty();
  }
};

/// "2 tensors are missing: "a", "b"; 1 is unexpected: "c"; 1 has another shape
/// or dtype: ...": all groups that are not empty, with their numbers and the
/// first few of each.
std::string to_string(const KeyDifferences& differences);

} // namespace weft::checkpoint
