#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::checkpoint {

/// Whether `key` matches `pattern` part by part, parts being what dots
/// separate: `*` and `?` match within one part, `**` is any number of them.
/// "model.layers.*.wq.weight", "optimizer.**", "**.bias". As in a
/// parallelize plan (tp/parallelize_module.h).
bool key_matches(std::string_view pattern, std::string_view key);

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

} // namespace weft::checkpoint
