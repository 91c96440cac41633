#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::checkpoint {

/// Changes names: every match of `pattern`, an ECMAScript regular expression,
/// becomes `replacement`, in which $1 is the first group. {"^module\\.", ""}
/// takes a prefix off, {"^", "model."} puts one on.
struct RenameRule {
  std::string pattern;
  std::string replacement;
};

/// Rules made ready; each applies to what the one before left.
class Renaming {
 public:
  /// Throws: c10::ValueError naming a pattern that is no regular expression.
  explicit Renaming(const std::vector<RenameRule>& rules);
  ~Renaming();
  Renaming(const Renaming&) = delete;
  Renaming& operator=(const Renaming&) = delete;

  /// Throws: c10::ValueError naming the rule if nothing is left of `name`, or
  /// matching it takes too long.
  std::string operator()(const std::string& name) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

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
