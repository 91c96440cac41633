#include "tp/module_pattern.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/dotted_pattern.h"
#include "base/edit_distance.h"

namespace weft::tp {
namespace {

// A name to suggest for a pattern, and its edit distance.
struct Candidate {
  int64_t distance = 0;
  std::string name;

  auto operator<=>(const Candidate&) const = default;
};

// Compares component by component if their numbers are equal, so that the
// suggestion keeps matching globs.
Candidate candidate(std::string_view pattern, std::string_view path) {
  const auto written = base::components_of(pattern);
  const auto actual = base::components_of(path);
  if (written.size() != actual.size()) {
    return {base::edit_distance(pattern, path), std::string(path)};
  }
  Candidate result;
  for (size_t i = 0; i < written.size(); ++i) {
    const bool fits = base::matches_component(written[i], actual[i]);
    result.distance += fits ? 0 : base::edit_distance(written[i], actual[i]);
    result.name += result.name.empty() ? "" : ".";
    result.name += fits ? written[i] : actual[i];
  }
  return result;
}

} // namespace

bool matches(std::string_view pattern, std::string_view path) {
  return base::matches_dotted(pattern, path);
}

std::string join_patterns(const std::string& outer, const std::string& inner) {
  return outer.empty() || inner.empty() ? outer + inner : outer + "." + inner;
}

std::vector<std::string> nearest_names(
    std::string_view pattern,
    const std::vector<std::string>& paths) {
  const auto limit = static_cast<int64_t>(1 + pattern.size() / 3);
  std::vector<Candidate> near;
  for (const auto& path : paths) {
    auto found = candidate(pattern, path);
    if (!path.empty() && found.distance <= limit) {
      near.push_back(std::move(found));
    }
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> names;
  for (const auto& [distance, name] : near) {
    if (distance > near[0].distance + 1 || names.size() == 3) {
      break;
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

} // namespace weft::tp
