#include "mesh/communicator/format.h"

#include "base/string_streams.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

std::string reduction_text(int64_t argument) {
  switch (static_cast<ReduceOp>(argument)) {
    case ReduceOp::kSum:
      return "";
    case ReduceOp::kAvg:
      return " to the average";
    case ReduceOp::kMin:
      return " to the minimum";
    case ReduceOp::kMax:
      return " to the maximum";
    case ReduceOp::kProduct:
      return " to the product";
  }
  return "";
}

std::string bytes_text(int64_t bytes) {
  constexpr double kKibi = 1024;
  base::StringWriter out;
  out.precision(3);
  const auto count = static_cast<double>(bytes);
  if (count < kKibi) {
    out << bytes << " bytes";
  } else if (count < kKibi * kKibi) {
    out << count / kKibi << " KiB";
  } else {
    out << count / (kKibi * kKibi) << " MiB";
  }
  return out.str();
}

std::string shape_text(const FlightRecorderEntry& entry) {
  base::StringWriter out;
  out << "[";
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    out << (i == 0 ? "" : ", ") << entry.shape[i];
  }
  out << "] " << c10::toString(entry.dtype);
  return out.str();
}

} // namespace

std::string call_text(const FlightRecorderEntry& entry) {
  base::StringWriter out;
  out << entry.op << " #" << entry.sequence;
  if (entry.op.starts_with("broadcast")) {
    out << " from rank " << entry.argument << " of the group";
  } else if (entry.op.find("reduce") != std::string::npos) {
    out << reduction_text(entry.argument);
  }
  if (entry.op == "barrier") {
    return out.str() + (entry.name.empty() ? "" : " \"" + entry.name + "\"");
  }
  out << " (";
  if (!entry.name.empty()) {
    out << "\"" << entry.name << "\" ";
  }
  out << shape_text(entry) << ", " << bytes_text(entry.bytes) << ")";
  return out.str();
}

std::string seconds_text(int64_t nanoseconds) {
  base::StringWriter out;
  out.precision(3);
  out << static_cast<double>(nanoseconds) * 1e-9 << " s";
  return out.str();
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  if (ranks.size() == 1) {
    return detail::concat("rank ", ranks[0]);
  }
  const bool is_range =
      ranks.size() > 2 &&
      ranks.back() - ranks.front() + 1 == static_cast<int64_t>(ranks.size());
  if (is_range) {
    return detail::concat("ranks ", ranks.front(), " to ", ranks.back());
  }
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += detail::concat(before, ranks[i]);
  }
  return text;
}

} // namespace weft::mesh
