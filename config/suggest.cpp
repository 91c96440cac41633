#include "config/suggest.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/schema.h"

namespace weft::config {
namespace {

std::string_view leaf_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::vector<std::string_view> all_paths() {
  std::vector<std::string_view> paths;
  for (const Key& key : schema()) {
    paths.push_back(key.path);
  }
  for (const Section& section : sections()) {
    paths.push_back(section.name);
  }
  return paths;
}

// Returns true if each word of `written` begins a word of `name`, as in seq_len
// and sequence_length, or batch_size and global_batch_size.
bool abbreviates(std::string_view written, std::string_view name) {
  while (!written.empty()) {
    const std::string_view word = written.substr(0, written.find('_'));
    const size_t at = name.find(word);
    if (word.size() < 3 || at == std::string_view::npos ||
        (at > 0 && name[at - 1] != '_')) {
      return false;
    }
    name.remove_prefix(at + word.size());
    written.remove_prefix(std::min(word.size() + 1, written.size()));
  }
  return true;
}

// Returns the distance of `path` from the written key. 1 is the right leaf in
// another section. kNone means that they are not similar.
int64_t key_distance(std::string_view written, std::string_view path) {
  constexpr int64_t kNone = 1000;
  const auto limit = static_cast<int64_t>(1 + leaf_of(written).size() / 4);
  int64_t leaf = base::edit_distance(leaf_of(written), leaf_of(path));
  if (leaf > 1 && abbreviates(leaf_of(written), leaf_of(path))) {
    leaf = 1;
  }
  if (leaf > limit || leaf >= static_cast<int64_t>(leaf_of(path).size())) {
    return kNone;
  }
  const bool same_section = section_of(written) == section_of(path);
  return 2 * leaf + (same_section ? 0 : 1);
}

std::string list_keys(std::string_view section) {
  std::vector<std::string_view> names;
  for (const std::string_view path : all_paths()) {
    if (section_of(path) == section) {
      names.push_back(leaf_of(path));
    }
  }
  if (names.empty()) {
    return fmt::format("{} is not a section; {}", section, list_keys(""));
  }
  return fmt::format(
      "{} has {}",
      section.empty() ? "a recipe" : section,
      fmt::join(names, ", "));
}

} // namespace

std::string suggest_key(std::string_view path) {
  const auto paths = all_paths();
  if (std::find(paths.begin(), paths.end(), leaf_of(path)) != paths.end() &&
      is_section(leaf_of(path))) {
    return fmt::format("{} is a top-level key", leaf_of(path));
  }
  const auto nearest = std::min_element(
      paths.begin(), paths.end(), [&](std::string_view a, std::string_view b) {
        return key_distance(path, a) < key_distance(path, b);
      });
  constexpr int64_t kAlike = 100;
  return key_distance(path, *nearest) < kAlike
             ? fmt::format("did you mean {}?", *nearest)
             : list_keys(section_of(path));
}

} // namespace weft::config
