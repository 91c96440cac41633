#include "launcher/options/flag_hint.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

namespace weft::launcher {
namespace {

/// torchrun's flags that mean nothing to a launcher of programs.
constexpr std::array<std::string_view, 8> kNotApplicable{
    "-m",
    "--module",
    "--run-path",
    "--start-method",
    "--event-log-handler",
    "--logs-specs",
    "--print-completion",
    "--use-env"};

/// Levenshtein's distance.
size_t edits(std::string_view left, std::string_view right) {
  std::vector<size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < left.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < right.size(); ++j) {
      const size_t substituted = diagonal + (left[i] != right[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
}

} // namespace

std::string nearest_flag(
    std::string_view flag,
    const std::vector<std::string>& valid) {
  // What MPI's launchers call it.
  if (flag == "-n" || flag == "-np" || flag == "--np") {
    return "--nproc-per-node";
  }
  const auto cost = [&](const std::string& name) {
    return name.starts_with(flag) ? 0 : edits(flag, name);
  };
  const auto best = std::ranges::min_element(valid, {}, cost);
  return best == valid.end() ? "--help" : *best;
}

std::string unknown_flag_message(
    std::string_view flag,
    const std::vector<std::string>& valid) {
  if (std::ranges::find(kNotApplicable, flag) != kNotApplicable.end()) {
    return fmt::format(
        "{} does not apply: weftrun starts programs, not Python functions or "
        "modules. Leave it out (for Python: weftrun -- python3 ...).",
        flag);
  }
  return fmt::format(
      "unknown flag {}. Did you mean {}? Flags of the program come after its "
      "name; weftrun --help lists weftrun's.",
      flag,
      nearest_flag(flag, valid));
}

} // namespace weft::launcher
