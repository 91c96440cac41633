#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// The substrings of --duplicate-stdout-filters; a line matches if it contains
/// one of them. As in torchrun, "loss,grad,,norm" means "loss" and "grad,norm".
class LineFilter {
 public:
  /// Parses a filter. An empty text matches nothing.
  /// Throws: LaunchError naming `flag` if one of several substrings is empty,
  /// as it would match every line.
  static LineFilter parse(std::string_view flag, std::string_view text);

  bool any() const { return !needles_.empty(); }
  bool matches(std::string_view line) const;

 private:
  std::vector<std::string> needles_;
};

} // namespace weft::launcher
