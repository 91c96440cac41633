#include "train/report/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"
#include "train/metrics/write_file.h"
#include "train/report/assets.h"

namespace weft::train {
namespace {

using nlohmann::ordered_json;

// Curves are written as text instead of ordered_json, which takes 16 bytes more
// per number. Curves have thousands of numbers, and a run rewrites its report
// many times.

// Appends a number without the digits that a picture cannot show.
void append_number(std::string& text, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(text), "{:.7g}", value);
  } else {
    text += "null";
  }
}
void append_number(std::string& text, int64_t value) {
  fmt::format_to(std::back_inserter(text), "{}", value);
}

ordered_json number_json(double value) {
  std::string text;
  append_number(text, value);
  return base::parse_json<ordered_json>(text);
}

// Appends `,"key":[1,2]`.
template <class T, class Get>
void append_column(
    std::string& text,
    std::string_view key,
    const std::vector<T>& items,
    const Get& get) {
  fmt::format_to(std::back_inserter(text), ",\"{}\":[", key);
  for (const auto& item : items) {
    append_number(text, get(item));
    text += ',';
  }
  if (!items.empty()) {
    text.pop_back();
  }
  text += ']';
}

// Appends `,"key":{`, the members and `}`. Each member begins with a comma.
template <class Append>
void append_object(
    std::string& text,
    std::string_view key,
    const Append& append_members) {
  fmt::format_to(std::back_inserter(text), ",\"{}\":{{", key);
  const size_t begin = text.size();
  append_members();
  text.erase(begin, 1);
  text += '}';
}

void append_curves(std::string& text, const MetricsSeries& metrics) {
  using Point = MetricsPoint;
  const auto& points = metrics.points;
  append_column(
      text, "step", points, [](const Point& p) { return p.last_step; });
  append_column(
      text, "tokens", points, [](const Point& p) { return p.tokens; });
  append_column(
      text, "time_s", points, [](const Point& p) { return p.time_s; });
  append_object(text, "series", [&] {
    for (const auto key : Point::kKeys) {
      append_object(text, key, [&] {
        append_column(text, "mean", points, [&](const Point& p) {
          return p[key].mean();
        });
        if (metrics.steps_per_point > 1) {
          append_column(text, "min", points, [&](const Point& p) {
            return p[key].least;
          });
          append_column(
              text, "max", points, [&](const Point& p) { return p[key].most; });
        }
      });
    }
  });
}

void append_eval(std::string& text, const std::vector<EvalPoint>& evals) {
  using Point = EvalPoint;
  append_object(text, "eval", [&] {
    append_column(text, "step", evals, [](const Point& p) { return p.step; });
    append_column(
        text, "tokens", evals, [](const Point& p) { return p.tokens; });
    append_column(
        text, "time_s", evals, [](const Point& p) { return p.time_s; });
    append_column(text, "loss", evals, [](const Point& p) { return p.loss; });
  });
}

ValueRange total(const MetricsSeries& metrics, std::string_view key) {
  ValueRange range;
  for (const auto& point : metrics.points) {
    range.add(point[key]);
  }
  return range;
}

double median(const MetricsSeries& metrics, std::string_view key) {
  std::vector<double> values;
  for (const auto& point : metrics.points) {
    if (point[key].count > 0) {
      values.push_back(point[key].mean());
    }
  }
  if (values.empty()) {
    return std::nan("");
  }
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ordered_json summary(const MetricsSeries& metrics) {
  const auto& points = metrics.points;
  ordered_json summary = {
      {"steps", points.empty() ? 0 : points.back().last_step},
      {"tokens", points.empty() ? 0 : points.back().tokens},
      {"duration_s", number_json(points.empty() ? 0 : points.back().time_s)},
      {"loss", number_json(metrics.last_loss)},
      {"loss_best", number_json(total(metrics, "loss").least)},
      {"tokens_per_s", number_json(median(metrics, "tokens_per_s"))},
      {"step_ms", number_json(median(metrics, "step_ms"))},
      {"peak_rss_mb", number_json(total(metrics, "peak_rss_mb").most)},
      {"peak_device_mb", number_json(total(metrics, "peak_device_mb").most)},
      {"comm_share",
       number_json(
           total(metrics, "comm_ms").mean() /
           total(metrics, "step_ms").mean())}};
  for (const auto* key :
       {"compute_ms", "comm_ms", "data_ms", "checkpoint_ms"}) {
    summary[key] = number_json(total(metrics, key).mean());
  }
  if (!metrics.evals.empty()) {
    const auto best = std::ranges::min_element(
        metrics.evals, {}, [](const EvalPoint& e) { return e.loss; });
    summary["eval_loss"] = number_json(metrics.evals.back().loss);
    summary["eval_best"] = number_json(best->loss);
    summary["eval_best_step"] = best->step;
  }
  return summary;
}

ordered_json indices_of(
    const std::vector<int64_t>& steps,
    const std::vector<MetricsPoint>& points) {
  auto indices = ordered_json::array();
  for (const int64_t step : steps) {
    const auto found =
        std::ranges::lower_bound(points, step, {}, &MetricsPoint::last_step);
    if (found != points.end()) {
      indices.push_back(found - points.begin());
    }
  }
  return indices;
}

// Returns JSON for a <script>. Only '<' could end the element, and JSON
// contains it in strings only.
std::string for_script(const ordered_json& json) {
  std::string text;
  for (const char c : base::json_text(json)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

ordered_json quorums_json(const std::vector<QuorumEntry>& quorums) {
  auto lines = ordered_json::array();
  for (const auto& entry : quorums) {
    lines.push_back(base::parse_json<ordered_json>(quorum_line(entry)));
  }
  return lines;
}

void append_run(
    std::string& text,
    const RunData& run,
    const std::string& label) {
  text += for_script(
      {{"label", label},
       {"folder", run.folder},
       {"written", run.written},
       {"total_steps", run.total_steps},
       {"lines", run.metrics.lines},
       {"per_point", run.metrics.steps_per_point},
       {"notes", run.notes},
       {"summary", summary(run.metrics)},
       {"restarts", indices_of(run.metrics.restarts, run.metrics.points)},
       {"recipe", run.recipe},
       {"quorum", quorums_json(run.quorums)},
       {"layout",
        run.layout ? base::parse_json<ordered_json>(to_json(*run.layout))
                   : nullptr}});
  text.pop_back(); // removes the closing brace
  append_curves(text, run.metrics);
  append_eval(text, run.metrics.evals);
  text += '}';
}

// Returns the label of a run, or its folder if several runs have the label.
std::string label_among(std::span<const RunData> runs, const RunData& run) {
  const auto same = std::ranges::count_if(
      runs, [&](const RunData& other) { return other.label == run.label; });
  return same > 1 ? run.folder : run.label;
}

// Appends the data of the page, escaped so that it cannot end its <script>.
void append_data(std::string& text, std::span<const RunData> runs) {
  ordered_json head = {
      {"made_by", std::string(report_maker())},
      {"differences", ordered_json::array()}};
  for (const auto& difference : recipe_differences(runs)) {
    auto values = ordered_json::array();
    for (const auto& value : difference.values) {
      values.push_back(value ? ordered_json(*value) : nullptr);
    }
    head["differences"].push_back(
        {{"key", difference.key}, {"values", values}});
  }
  text += for_script(head);
  text.pop_back(); // removes the closing brace
  text += ",\"runs\":[";
  for (const auto& run : runs) {
    append_run(text, run, label_among(runs, run));
    text += ',';
  }
  if (!runs.empty()) {
    text.pop_back();
  }
  text += "]}";
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

// Returns valid UTF-8. The name of a folder can be invalid.
std::string clean(const std::string& text) {
  const auto quoted = base::json_text(ordered_json(text));
  return base::parse_json<ordered_json>(quoted).get<std::string>();
}

std::string title_of(std::span<const RunData> runs) {
  return runs.size() == 1 ? runs[0].label + " - weft"
                          : fmt::format("{} runs - weft", runs.size());
}

template <class Body>
std::string problem_in(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return "report: " + mesh::message_of(error);
  }
  return "";
}

/// A marker of a page and the function that appends its replacement.
struct Filling {
  std::string_view marker;
  std::function<void(std::string& text)> append;
};

// Replaces the markers of a page in their order. Replacements are not searched
// for markers and not copied.
std::string fill_in(
    std::string_view page,
    const std::vector<Filling>& fillings) {
  std::string text;
  for (const auto& [marker, append] : fillings) {
    const size_t at = page.find(marker);
    text.append(page.substr(0, at));
    append(text);
    page.remove_prefix(at + marker.size());
  }
  text.append(page);
  return text;
}

} // namespace

std::string report_html(std::span<const RunData> runs) {
  return fill_in(
      report_page(),
      {{"@TITLE@",
        [&](std::string& text) { text += escape_html(clean(title_of(runs))); }},
       {"@STYLE@", [](std::string& text) { text += report_style(); }},
       {"@DATA@", [&](std::string& text) { append_data(text, runs); }},
       {"@SCRIPT@", [](std::string& text) { text += report_script(); }}});
}

std::string write_report(const std::string& run_folder) {
  const auto path =
      (std::filesystem::path(run_folder) / "report.html").string();
  write_report({&run_folder, 1}, path);
  return path;
}

void write_report(
    std::span<const std::string> run_folders,
    const std::string& path) {
  std::vector<RunData> runs;
  for (const auto& folder : run_folders) {
    runs.push_back(read_run(folder));
  }
  write_file(path, report_html(runs));
}

LiveReport::LiveReport(std::string run_folder)
    : run_folder_(std::move(run_folder)) {}

std::string LiveReport::write_layout(
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh) {
  return problem_in([&] { write_rank_shares(run_folder_, model, mesh); });
}

std::string LiveReport::refresh(bool is_last) {
  const auto start = Clock::now();
  if (!is_last && spent_ * 100 > start - start_) {
    return "";
  }
  auto problem = problem_in([&] { write_report(run_folder_); });
  spent_ += Clock::now() - start;
  return problem;
}

} // namespace weft::train
