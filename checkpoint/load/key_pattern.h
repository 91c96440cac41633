#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::checkpoint {

/// A rule that renames tensors: every match of `pattern`, an ECMAScript regular
/// expression, is replaced by `replacement`, in which $1 is the first group.
/// {"^module\\.", ""} removes a prefix, {"^", "model."} adds one.
struct RenameRule {
  /// The regular expression.
  std::string pattern;
  /// The text in place of each match.
  std::string replacement;
};

/// Compiled rename rules. Each rule applies to the result of the previous one.
class Renaming {
 public:
  /// Throws: c10::ValueError if a pattern is not a regular expression.
  explicit Renaming(const std::vector<RenameRule>& rules);
  ~Renaming();
  Renaming(const Renaming&) = delete;
  Renaming& operator=(const Renaming&) = delete;

  /// Returns the new name.
  /// Throws: c10::ValueError naming the rule if the result is empty or the
  /// matching takes too long.
  std::string operator()(const std::string& name) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

/// The differences between the tensors of two sides.
struct KeyDifferences {
  /// The tensors that are wanted but not present.
  std::vector<std::string> missing = {};
  /// The tensors that are present but not wanted.
  std::vector<std::string> unexpected = {};
  /// The tensors whose shape or dtype differs: "\"model.a\" [2] float32 vs [4]
  /// float32".
  std::vector<std::string> mismatched = {};

  /// Returns true if there are no differences.
  bool empty() const {
    return missing.empty() && unexpected.empty() && mismatched.empty();
  }
};

/// Returns "2 tensors are missing: "a", "b"; 1 is unexpected: "c"; 1 has
/// another shape or dtype: ...": all non-empty groups with their counts and
/// their first few entries.
std::string to_string(const KeyDifferences& differences);

} // namespace weft::checkpoint
