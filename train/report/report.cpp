#include "train/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mesh/error/error.h"
#include "train/metrics/write_file.h"
#include "train/report/assets.h"

namespace weft::recipes {
namespace {

using nlohmann::ordered_json;

// Digits that a picture cannot show are left out.
ordered_json number_json(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

template <class T, class Get>
ordered_json column(const std::vector<T>& items, const Get& get) {
  auto values = ordered_json::array();
  for (const auto& item : items) {
    values.push_back(get(item));
  }
  return values;
}

ordered_json curves(const MetricsSeries& metrics) {
  auto all = ordered_json::object();
  for (const auto key : MetricsPoint::kKeys) {
    auto& curve = all[std::string(key)];
    curve["mean"] = column(metrics.points, [&](const MetricsPoint& p) {
      return number_json(p[key].mean());
    });
    if (metrics.steps_per_point > 1) {
      curve["min"] = column(metrics.points, [&](const MetricsPoint& p) {
        return number_json(p[key].least);
      });
      curve["max"] = column(metrics.points, [&](const MetricsPoint& p) {
        return number_json(p[key].most);
      });
    }
  }
  return all;
}

ordered_json eval_curve(const std::vector<EvalPoint>& evals) {
  return {
      {"step", column(evals, [](const EvalPoint& e) { return e.step; })},
      {"tokens", column(evals, [](const EvalPoint& e) { return e.tokens; })},
      {"time_s",
       column(evals, [](const EvalPoint& e) { return number_json(e.time_s); })},
      {"loss",
       column(evals, [](const EvalPoint& e) { return number_json(e.loss); })}};
}

// The values of all steps as one.
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

// Where in `points` the steps lie.
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

ordered_json run_json(const RunData& run, const std::string& label) {
  const auto& points = run.metrics.points;
  using Point = MetricsPoint;
  return {
      {"label", label},
      {"folder", run.folder},
      {"written", run.written},
      {"total_steps", run.total_steps},
      {"lines", run.metrics.lines},
      {"per_point", run.metrics.steps_per_point},
      {"notes", run.notes},
      {"summary", summary(run.metrics)},
      {"restarts", indices_of(run.metrics.restarts, points)},
      {"step", column(points, [](const Point& p) { return p.last_step; })},
      {"tokens", column(points, [](const Point& p) { return p.tokens; })},
      {"time_s",
       column(points, [](const Point& p) { return number_json(p.time_s); })},
      {"series", curves(run.metrics)},
      {"eval", eval_curve(run.metrics.evals)},
      {"recipe", run.recipe},
      {"layout",
       run.layout ? ordered_json::parse(to_json(*run.layout)) : nullptr}};
}

// Runs of one name are told apart by their folders.
std::string label_among(std::span<const RunData> runs, const RunData& run) {
  const auto same = std::ranges::count_if(
      runs, [&](const RunData& other) { return other.label == run.label; });
  return same > 1 ? run.folder : run.label;
}

std::string data_json(std::span<const RunData> runs) {
  ordered_json data = {
      {"made_by", std::string(report_maker())},
      {"runs", ordered_json::array()},
      {"differences", ordered_json::array()}};
  for (const auto& run : runs) {
    data["runs"].push_back(run_json(run, label_among(runs, run)));
  }
  for (const auto& difference : recipe_differences(runs)) {
    auto values = ordered_json::array();
    for (const auto& value : difference.values) {
      values.push_back(value ? ordered_json(*value) : nullptr);
    }
    data["differences"].push_back(
        {{"key", difference.key}, {"values", values}});
  }
  return data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// JSON inside a <script>: only '<' could end the element, and it stands in
// strings alone.
std::string for_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
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

// Valid UTF-8, whatever a folder's name is.
std::string clean(const std::string& text) {
  const auto quoted = ordered_json(text).dump(
      -1, ' ', false, ordered_json::error_handler_t::replace);
  return ordered_json::parse(quoted).get<std::string>();
}

std::string title_of(std::span<const RunData> runs) {
  return runs.size() == 1 ? runs[0].label + " - weft"
                          : fmt::format("{} runs - weft", runs.size());
}

// What `body` throws, in words.
template <class Body>
std::string problem_in(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return fmt::format("report: {}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fmt::format("report: {}", error.what());
  }
  return "";
}

// What is put in is never searched for markers.
std::string fill_in(
    std::string_view page,
    const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string text;
  for (const auto& [marker, value] : values) {
    const size_t at = page.find(marker);
    text.append(page.substr(0, at)).append(value);
    page.remove_prefix(at + marker.size());
  }
  return text.append(page);
}

} // namespace

std::string report_html(std::span<const RunData> runs) {
  return fill_in(
      report_page(),
      {{"@TITLE@", escape_html(clean(title_of(runs)))},
       {"@STYLE@", std::string(report_style())},
       {"@DATA@", for_script(data_json(runs))},
       {"@SCRIPT@", std::string(report_script())}});
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

} // namespace weft::recipes
