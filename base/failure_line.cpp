#include "base/failure_line.h"

#include <algorithm>

#include "base/parse_int.h"

namespace weft::base {
namespace {

constexpr std::string_view kError = "ERROR ";
constexpr std::string_view kRank = " rank=";
constexpr std::string_view kOp = " op=";

// Removes and returns the text before `mark`, and removes `mark`. Returns
// nothing if `mark` is missing.
std::optional<std::string> take_until(
    std::string_view& text,
    std::string_view mark) {
  const size_t end = text.find(mark);
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  std::string taken(text.substr(0, end));
  text.remove_prefix(end + mark.size());
  return taken;
}

} // namespace

void write_failure_start(
    SafeWriter& out,
    int code,
    int64_t rank,
    std::string_view op) {
  out << kError << Decimal{code} << kRank << Decimal{rank} << kOp << op << " ";
}

std::string FailureLine::to_string() const {
  std::string line(kError);
  line += std::to_string(code);
  line.append(kRank).append(std::to_string(rank)).append(kOp).append(op);
  line.append(" ").append(text);
  std::ranges::replace(line, '\n', ' ');
  return line;
}

std::optional<FailureLine> FailureLine::parse(std::string_view line) {
  if (!line.starts_with(kError)) {
    return std::nullopt;
  }
  line.remove_prefix(kError.size());
  const auto code = take_until(line, kRank);
  const auto rank = code ? take_until(line, kOp) : std::nullopt;
  if (!rank) {
    return std::nullopt;
  }
  const auto code_number = parse_int<int>(*code);
  const auto rank_number = parse_int<int64_t>(*rank);
  if (!code_number || !rank_number) {
    return std::nullopt;
  }
  const size_t end = std::min(line.find(' '), line.size());
  return FailureLine{
      .code = *code_number,
      .rank = *rank_number,
      .op = std::string(line.substr(0, end)),
      .text = std::string(line.substr(std::min(end + 1, line.size())))};
}

} // namespace weft::base
