#include "launcher/output/line_tail.h"

#include <algorithm>

#include "base/failure_line.h"

namespace weft::launcher {
namespace {

/// Returns what a terminal would show of a line with carriage returns.
std::string_view visible(std::string_view line) {
  while (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line.substr(line.rfind('\r') + 1); // npos + 1 is 0
}

} // namespace

void LineTail::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const size_t room = kLineBytes - line_.size();
    line_.append(bytes.substr(0, std::min(end, room)));
    if (end == bytes.size()) {
      return;
    }
    end_line();
    bytes.remove_prefix(end + 1);
  }
}

void LineTail::end_line() {
  const std::string_view text = visible(line_);
  if (base::FailureLine::parse(text)) {
    error_line_ = text;
  }
  lines_.emplace_back(text);
  if (lines_.size() > kLines) {
    lines_.pop_front();
  }
  line_.clear();
}

std::vector<std::string> LineTail::lines() const {
  std::vector<std::string> result(lines_.begin(), lines_.end());
  result.emplace_back(visible(line_));
  while (!result.empty() && result.back().empty()) {
    result.pop_back();
  }
  if (result.size() > kLines) {
    result.erase(result.begin());
  }
  return result;
}

std::string LineTail::error_line(int code) const {
  for (const std::string_view line : {visible(line_), visible(error_line_)}) {
    const auto parsed = base::FailureLine::parse(line);
    if (parsed && parsed->code == code) {
      return std::string(line);
    }
  }
  return "";
}

} // namespace weft::launcher
