#include "train/trace/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::train {
namespace {

using nlohmann::ordered_json;

std::string quoted_name(const std::string& text) {
  return base::json_text(ordered_json(text));
}

std::string traced_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Returns the system clock minus the monotonic clock, which starts with the
// host.
int64_t clock_offset_ns() {
  const auto day = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(day).count() -
         monotonic_ns();
}

std::string
named(const char* what, int64_t rank, int64_t track, const std::string& name) {
  return fmt::format(
      R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})",
      what,
      rank,
      track,
      quoted_name(name));
}

std::string
sorted(const char* what, int64_t rank, int64_t track, int64_t index) {
  return fmt::format(
      R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
      what,
      rank,
      track,
      index);
}

// Times are in microseconds, with three decimals for the nanoseconds.
std::string span_line(const TraceEvent& event, int64_t rank) {
  const int64_t length_ns = event.end_ns - event.start_ns;
  return fmt::format(
      R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},)"
      R"("ts":{}.{:03},"dur":{}.{:03}{}{}}})",
      quoted_name(event.name),
      event.category,
      rank,
      event.track,
      event.start_ns / 1000,
      event.start_ns % 1000,
      length_ns / 1000,
      length_ns % 1000,
      event.details.empty() ? "" : R"(,"args":)",
      event.details);
}

std::string collective_details(
    const std::string& group,
    const mesh::FlightRecorderEntry& entry) {
  return base::json_text(ordered_json(
      {{"group", group},
       {"sequence", entry.sequence},
       {"what", entry.name},
       {"bytes", entry.bytes},
       {"shape", entry.shape},
       {"dtype", c10::toString(entry.dtype)}}));
}

std::string file_text(
    const ordered_json& header,
    const std::vector<std::string>& lines) {
  std::string text = base::json_text(header);
  text.back() = ','; // continues the object
  text += "\"traceEvents\":[\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    text.append(lines[i]).append(i + 1 < lines.size() ? ",\n" : "\n");
  }
  return text.append("]}\n");
}

struct TraceText {
  std::string host;
  int64_t offset_ns = 0;
  std::vector<std::string> lines;
};

std::optional<TraceText> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  const auto header = base::try_parse_json<ordered_json>(line + "]}");
  if (!header.is_object() || !header.contains("otherData")) {
    return std::nullopt;
  }
  TraceText text;
  text.host = header["otherData"].value("host", "");
  text.offset_ns = header["otherData"].value("clock_offset_ns", int64_t{0});
  bool has_end = false;
  while (std::getline(file, line)) {
    has_end = line == "]}";
    if (!has_end) {
      if (line.ends_with(',')) {
        line.pop_back();
      }
      text.lines.push_back(std::move(line));
    }
  }
  return has_end ? std::optional(std::move(text)) : std::nullopt;
}

void shift(std::vector<std::string>& lines, int64_t by_ns) {
  for (auto& line : lines) {
    auto event = base::parse_json<ordered_json>(line);
    if (event.contains("ts")) {
      event["ts"] =
          event["ts"].get<double>() + static_cast<double>(by_ns) * 1e-3;
      line = base::strict_json_text(event);
    }
  }
}

} // namespace

void add_collectives(
    RankTrace& trace,
    const std::string& group,
    int64_t first_track,
    std::span<const mesh::FlightRecorderEntry> entries) {
  std::vector<int64_t> free_at; // the end of the last entry per track
  for (const auto& entry : entries) {
    auto lane = std::ranges::find_if(
        free_at, [&](int64_t end) { return end <= entry.start_ns; });
    if (lane == free_at.end()) {
      lane = free_at.insert(lane, 0);
    }
    *lane = entry.end_ns;
    const int64_t track = first_track + (lane - free_at.begin());
    trace.tracks[track] =
        lane == free_at.begin()
            ? group
            : fmt::format("{} ({})", group, lane - free_at.begin() + 1);
    trace.events.push_back(
        {entry.name.empty() ? entry.op
                            : fmt::format("{} {}", entry.op, entry.name),
         "collective",
         entry.start_ns,
         entry.end_ns,
         track,
         collective_details(group, entry)});
  }
}

std::string to_chrome_json(const RankTrace& trace) {
  ordered_json header = {
      {"displayTimeUnit", "ms"},
      {"otherData",
       {{"host", traced_host()}, {"clock_offset_ns", clock_offset_ns()}}}};
  if (!trace.notes.empty()) {
    header["otherData"]["notes"] = trace.notes;
  }
  std::vector<std::string> lines = {
      named("process_name", trace.rank, 0, trace.title),
      sorted("process_sort_index", trace.rank, 0, trace.rank)};
  for (const auto& [track, name] : trace.tracks) {
    lines.push_back(named("thread_name", trace.rank, track, name));
    lines.push_back(sorted("thread_sort_index", trace.rank, track, track));
  }
  // Spans precede the spans that they contain.
  std::vector<const TraceEvent*> order;
  for (const auto& event : trace.events) {
    order.push_back(&event);
  }
  std::ranges::stable_sort(order, {}, [](const TraceEvent* event) {
    return std::pair(event->start_ns, -event->end_ns);
  });
  for (const auto* event : order) {
    lines.push_back(span_line(*event, trace.rank));
  }
  return file_text(header, lines);
}

std::string merge_chrome_json(
    std::span<const std::string> paths,
    std::vector<std::string>& problems) {
  std::optional<TraceText> first;
  std::vector<std::string> lines;
  for (const auto& path : paths) {
    errno = 0;
    auto text = read_trace(path);
    if (!text) {
      problems.push_back(fmt::format(
          "{}: {}",
          path,
          errno == 0 ? "is not a complete trace" : std::strerror(errno)));
      continue;
    }
    if (!first) {
      first = TraceText{text->host, text->offset_ns, {}};
    } else if (text->host != first->host) {
      shift(text->lines, text->offset_ns - first->offset_ns);
    }
    lines.insert(
        lines.end(),
        std::make_move_iterator(text->lines.begin()),
        std::make_move_iterator(text->lines.end()));
  }
  ordered_json header = {
      {"displayTimeUnit", "ms"}, {"otherData", ordered_json::object()}};
  if (!problems.empty()) {
    header["otherData"]["notes"] = problems;
  }
  return file_text(header, lines);
}

} // namespace weft::train
