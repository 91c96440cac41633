#include "launcher/options/stream_selection.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/parse_int.h"
#include "launcher/process/error.h"

namespace weft::launcher {

StreamSelection StreamSelection::parse(
    std::string_view flag,
    std::string_view text) {
  const auto malformed = [&](std::string_view part) {
    return LaunchError(fmt::format(
        "{} {}: got '{}', expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), "
        "or one of these per local rank, such as 0:1,1:3.",
        flag,
        text,
        part));
  };
  StreamSelection selection;
  if (text.find(':') == std::string_view::npos) {
    const auto streams = base::parse_int(text, 0, 3);
    if (!streams) {
      throw malformed(text);
    }
    selection.all_ = *streams;
    return selection;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      throw malformed(part);
    }
    const auto rank = base::parse_int<int>(part.substr(0, colon), 0);
    const auto streams = base::parse_int(part.substr(colon + 1), 0, 3);
    if (!rank || !streams) {
      throw malformed(part);
    }
    selection.by_rank_[*rank] = *streams;
    begin = end + 1;
  }
  return selection;
}

bool StreamSelection::has(int local_rank, int stream) const {
  const auto found = by_rank_.find(local_rank);
  return ((found == by_rank_.end() ? all_ : found->second) & stream) != 0;
}

bool StreamSelection::any() const {
  return all_ != 0 || std::ranges::any_of(by_rank_, [](const auto& entry) {
           return entry.second != 0;
         });
}

int StreamSelection::max_rank() const {
  return by_rank_.empty() ? -1 : by_rank_.rbegin()->first;
}

} // namespace weft::launcher
