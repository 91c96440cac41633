#include "base/dotted_pattern.h"

#include <cstddef>

namespace weft::base {
namespace {

// Returns true if `pattern` matches all of `items`. Backtracks to the last star
// only, so the time is at most the product of both lengths. `is_star` returns
// true for a pattern item that matches any number of items. `fits` returns true
// if a pattern item matches an item.
template <class Pattern, class Items, class IsStar, class Fits>
bool matches_items(
    const Pattern& pattern,
    const Items& items,
    const IsStar& is_star,
    const Fits& fits) {
  size_t p = 0;
  size_t i = 0;
  size_t star = pattern.size();
  size_t star_at = 0;
  while (i < items.size()) {
    if (p < pattern.size() && is_star(pattern[p])) {
      star = p++;
      star_at = i;
    } else if (p < pattern.size() && fits(pattern[p], items[i])) {
      ++p;
      ++i;
    } else if (star != pattern.size()) {
      p = star + 1;
      i = ++star_at;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && is_star(pattern[p])) {
    ++p;
  }
  return p == pattern.size();
}

} // namespace

bool matches_component(std::string_view pattern, std::string_view component) {
  return matches_items(
      pattern,
      component,
      [](char c) { return c == '*'; },
      [](char wanted, char c) { return wanted == '?' || wanted == c; });
}

std::vector<std::string_view> components_of(std::string_view path) {
  std::vector<std::string_view> components;
  while (!path.empty()) {
    const auto dot = path.find('.');
    components.push_back(path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
  }
  return components;
}

bool matches_dotted(std::string_view pattern, std::string_view path) {
  return matches_items(
      components_of(pattern),
      components_of(path),
      [](std::string_view component) { return component == "**"; },
      matches_component);
}

} // namespace weft::base
