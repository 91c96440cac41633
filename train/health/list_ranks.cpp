#include "train/health/list_ranks.h"

#include <fmt/format.h>

namespace weft::recipes {

std::string list_ranks(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format(
        "{}{}",
        i == 0 ? "" : (i + 1 == ranks.size() ? " and " : ", "),
        ranks[i]);
  }
  return text;
}

} // namespace weft::recipes
