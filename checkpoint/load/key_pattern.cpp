#include "checkpoint/load/key_pattern.h"

#include <algorithm>
#include <regex>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/text.h"

namespace weft::checkpoint {
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
          " is not a regular expression: ",
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
        " leaves an empty name for ",
        in_quotes(name),
        ".");
  }
  return result;
}

namespace {

constexpr size_t kMaxListed = 5;

std::string first_of(const std::vector<std::string>& entries) {
  const auto listed = std::min(entries.size(), kMaxListed);
  auto text = fmt::format(
      "{}", fmt::join(entries.begin(), entries.begin() + listed, ", "));
  if (entries.size() > listed) {
    text += fmt::format(" and {} more", entries.size() - listed);
  }
  return text;
}

std::vector<std::string> quoted(const std::vector<std::string>& keys) {
  std::vector<std::string> result;
  for (size_t i = 0; i < keys.size(); ++i) {
    result.push_back(i < kMaxListed ? in_quotes(keys[i]) : "");
  }
  return result;
}

} // namespace

std::string to_string(const KeyDifferences& differences) {
  std::vector<std::string> groups;
  const auto add = [&](const std::vector<std::string>& entries,
                       std::string_view one,
                       std::string_view many) {
    if (!entries.empty()) {
      groups.push_back(fmt::format(
          "{} {}: {}",
          entries.size(),
          entries.size() == 1 ? one : many,
          first_of(entries)));
    }
  };
  add(quoted(differences.missing), "tensor is missing", "tensors are missing");
  add(quoted(differences.unexpected),
      "tensor is unexpected",
      "tensors are unexpected");
  add(differences.mismatched,
      "tensor has another shape or dtype",
      "tensors have another shape or dtype");
  return fmt::format("{}", fmt::join(groups, "; "));
}

} // namespace weft::checkpoint
