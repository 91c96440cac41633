#include "checkpoint/load/key_differences.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/text.h"

namespace weft::checkpoint {
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
