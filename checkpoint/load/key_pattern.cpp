#include "checkpoint/load/key_pattern.h"

#include <regex>

#include <c10/util/Exception.h>

#include "checkpoint/files/text.h"

namespace weft::checkpoint {
namespace {

// Goes back to the last `*` only: time is the product of both lengths.
bool part_matches(std::string_view pattern, std::string_view part) {
  size_t p = 0;
  size_t k = 0;
  size_t star = std::string_view::npos;
  size_t star_at = 0;
  while (k < part.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_at = k;
    } else if (
        p < pattern.size() && (pattern[p] == '?' || pattern[p] == part[k])) {
      ++p;
      ++k;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      k = ++star_at;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(dot + 1);
  }
}

} // namespace

// As part_matches(), with parts for characters.
bool key_matches(std::string_view pattern, std::string_view key) {
  const auto patterns = parts_of(pattern);
  const auto parts = parts_of(key);
  size_t p = 0;
  size_t k = 0;
  size_t star = patterns.size();
  size_t star_at = 0;
  while (k < parts.size()) {
    if (p < patterns.size() && patterns[p] == "**") {
      star = p++;
      star_at = k;
    } else if (p < patterns.size() && part_matches(patterns[p], parts[k])) {
      ++p;
      ++k;
    } else if (star != patterns.size()) {
      p = star + 1;
      k = ++star_at;
    } else {
      return false;
    }
  }
  while (p < patterns.size() && patterns[p] == "**") {
    ++p;
  }
  return p == patterns.size();
}

struct Renaming::Rule {
  RenameRule text;
  std::regex pattern;
};

Renaming::Renaming(const std::vector<RenameRule>& rules) {
  for (const auto& rule : rules) {
    try {
      rules_.push_back({rule, std::regex(rule.pattern)});
    } catch (const std::regex_error& error) {
      TORCH_CHECK_VALUE(
          false,
          "[checkpoint.rename] ",
          in_quotes(rule.pattern),
          " is no regular expression: ",
          error.what(),
          ".");
    }
  }
}

Renaming::~Renaming() = default;

std::string Renaming::operator()(const std::string& name) const {
  std::string result = name;
  for (const auto& rule : rules_) {
    try {
      result = std::regex_replace(result, rule.pattern, rule.text.replacement);
    } catch (const std::regex_error& error) {
      TORCH_CHECK_VALUE(
          false,
          "[checkpoint.rename] ",
          in_quotes(rule.text.pattern),
          " on ",
          in_quotes(name),
          ": ",
          error.what(),
          ". Write a simpler pattern.");
    }
    TORCH_CHECK_VALUE(
        !result.empty(),
        "[checkpoint.rename] ",
        in_quotes(rule.text.pattern),
        " -> ",
        in_quotes(rule.text.replacement),
        " leaves nothing of ",
        in_quotes(name),
        ".");
  }
  return result;
}

} // namespace weft::checkpoint
