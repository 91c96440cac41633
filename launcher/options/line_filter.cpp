#include "launcher/options/line_filter.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {

LineFilter LineFilter::parse(std::string_view flag, std::string_view text) {
  LineFilter filter;
  if (text.empty()) {
    return filter;
  }
  auto& needles = filter.needles_;
  needles.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      needles.back() += text[i];
    } else if (text.substr(i + 1).starts_with(',')) {
      needles.back() += ',';
      ++i;
    } else {
      needles.emplace_back();
    }
  }
  if (std::ranges::any_of(needles, &std::string::empty)) {
    throw LaunchError(fmt::format(
        "{} {}: one of the filters is empty and would match every line. Remove "
        "the extra comma, or write ,, for a literal comma.",
        flag,
        text));
  }
  return filter;
}

bool LineFilter::matches(std::string_view line) const {
  return std::ranges::any_of(needles_, [&](const std::string& needle) {
    return line.find(needle) != std::string_view::npos;
  });
}

} // namespace weft::launcher
