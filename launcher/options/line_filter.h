#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// Texts of which a line needs to have one, as torchrun's
/// --duplicate-stdout-filters says them: "loss,grad,,norm" is "loss" and
/// "grad,norm".
class LineFilter {
 public:
  /// An empty text matches nothing.
  /// Throws: LaunchError naming `flag` if one of several parts is empty, as
  /// that would match every line.
  static LineFilter parse(std::string_view flag, std::string_view text);

  bool any() const { return !needles_.empty(); }
  bool matches(std::string_view line) const;

 private:
  std::vector<std::string> needles_;
};

} // namespace weft::launcher
