#include "train/report/metrics_series.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineBytes = 64 << 10;
constexpr size_t kMaxEvals = 20'000;

constexpr size_t index_of(std::string_view key) {
  size_t i = 0;
  while (MetricsPoint::kKeys.at(i) != key) {
    ++i;
  }
  return i;
}

std::optional<double> number_at(const json& line, std::string_view key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number()
             ? std::optional(found->get<double>())
             : std::nullopt;
}

std::optional<int64_t> whole_at(const json& line, std::string_view key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer()
             ? std::optional(found->get<int64_t>())
             : std::nullopt;
}

template <class T, class Join>
void halve(std::vector<T>& items, const Join& join) {
  const size_t half = (items.size() + 1) / 2;
  for (size_t i = 0; i < half; ++i) {
    T item = std::move(items[2 * i]);
    if (2 * i + 1 < items.size()) {
      join(item, items[2 * i + 1]);
    }
    items[i] = std::move(item);
  }
  items.resize(half);
}

void join_points(MetricsPoint& point, const MetricsPoint& next) {
  point.last_step = next.last_step;
  point.tokens = next.tokens;
  point.time_s = next.time_s;
  for (size_t k = 0; k < point.values.size(); ++k) {
    point.values.at(k).add(next.values.at(k));
  }
}

class SeriesReader {
 public:
  explicit SeriesReader(size_t max_points) : max_points_(max_points) {
    series_.points.reserve(max_points + 1);
  }

  // Reads a line. `is_last` is true if no line end follows it.
  void take(std::string_view text, bool is_last) {
    ++line_number_;
    if (text.empty()) {
      return;
    }
    const auto line = base::try_parse_json(text);
    const auto step = line.is_object() ? whole_at(line, "step") : std::nullopt;
    if (!step || *step < 0) {
      skip(is_last && line.is_discarded());
      return;
    }
    place(*step, line);
    add(*step, line);
  }

  void skip(bool is_cut_off) {
    if (is_cut_off) {
      series_.notes.push_back(fmt::format(
          "line {} of metrics.jsonl ends in the middle (the run was killed "
          "while writing it, or is running): skipped",
          line_number_));
      return;
    }
    first_unreadable_ = unreadable_ == 0 ? line_number_ : first_unreadable_;
    ++unreadable_;
  }

  void skip_long_line() {
    ++line_number_;
    skip(false);
  }

  MetricsSeries finish() {
    if (unreadable_ > 0) {
      series_.notes.push_back(fmt::format(
          "{} of metrics.jsonl cannot be read and left out; the first is "
          "line {}",
          unreadable_ == 1 ? "1 line" : fmt::format("{} lines", unreadable_),
          first_unreadable_));
    }
    if (replaced_ > 0) {
      series_.notes.push_back(fmt::format(
          "{} step{} ran more than once: the last time counts",
          replaced_,
          replaced_ == 1 ? "" : "s"));
    }
    for (const auto& [key, missing] : not_finite_) {
      series_.notes.push_back(fmt::format(
          "{} is not a finite number in {} step{}, the first is step {}",
          key,
          missing.count,
          missing.count == 1 ? "" : "s",
          missing.first_step));
    }
    return std::move(series_);
  }

 private:
  struct Missing {
    int64_t count = 0;
    int64_t first_step = 0;
  };

  // Notes a restart if the step is repeated or the peak RSS decreases. A
  // repeated step replaces the points after it.
  void place(int64_t step, const json& line) {
    auto& points = series_.points;
    if (points.empty()) {
      return;
    }
    const auto peak = number_at(line, "peak_rss_mb");
    const int64_t last = points.back().last_step;
    if (step <= last || (peak && *peak < last_peak_)) {
      std::erase_if(series_.restarts, [&](int64_t at) { return at > step; });
      series_.restarts.push_back(step);
    }
    if (step > last) {
      return;
    }
    replaced_ += last - step + 1;
    while (!points.empty() && points.back().first_step >= step) {
      points.pop_back();
    }
    if (!points.empty()) {
      points.back().last_step = std::min(points.back().last_step, step - 1);
    }
    std::erase_if(
        series_.evals, [&](const EvalPoint& e) { return e.step >= step; });
    in_last_point_ = series_.steps_per_point; // starts a new point
  }

  void add(int64_t step, const json& line) {
    MetricsPoint point;
    point.first_step = step;
    point.last_step = step;
    point.tokens = whole_at(line, "tokens").value_or(0);
    for (size_t k = 0; k < MetricsPoint::kKeys.size(); ++k) {
      const auto key = MetricsPoint::kKeys.at(k);
      const auto value = number_at(line, key);
      if (value) {
        point.values.at(k).add(*value);
      }
      const auto found = line.find(key);
      if (found != line.end() && (!value || !std::isfinite(*value))) {
        note_missing(key, step);
      }
    }
    add_compute(point);
    time_s_ += (number_at(line, "step_ms").value_or(0) +
                number_at(line, "checkpoint_ms").value_or(0)) *
               1e-3;
    point.time_s = time_s_;
    last_peak_ = number_at(line, "peak_rss_mb").value_or(last_peak_);
    series_.last_loss = number_at(line, "loss").value_or(series_.last_loss);
    ++series_.lines;
    add_eval(point, line);
    append(point);
  }

  void note_missing(std::string_view key, int64_t step) {
    auto& missing = not_finite_[key];
    if (missing.count++ == 0) {
      missing.first_step = step;
    }
  }

  static void add_compute(MetricsPoint& point) {
    const auto of = [&](std::string_view key) {
      const double mean = point[key].mean();
      return std::isfinite(mean) ? mean : 0.0;
    };
    if (point["step_ms"].count > 0) {
      point.values.at(index_of("compute_ms"))
          .add(std::max(0.0, of("step_ms") - of("data_ms") - of("comm_ms")));
    }
  }

  void add_eval(const MetricsPoint& point, const json& line) {
    const auto loss = number_at(line, "eval_loss");
    if (loss) {
      series_.evals.push_back(
          {point.last_step, point.tokens, point.time_s, *loss});
    } else if (line.contains("eval_loss")) {
      note_missing("eval_loss", point.last_step);
    }
    if (series_.evals.size() > kMaxEvals) {
      halve(series_.evals, [](EvalPoint& a, const EvalPoint& b) { a = b; });
    }
  }

  void append(const MetricsPoint& point) {
    auto& points = series_.points;
    const bool is_full =
        points.empty() || in_last_point_ >= series_.steps_per_point;
    if (is_full) {
      points.push_back(point);
      in_last_point_ = 1;
    } else {
      join_points(points.back(), point);
      ++in_last_point_;
    }
    if (points.size() > max_points_) {
      // If the number of points is odd, the last one is not joined with
      // another.
      in_last_point_ += points.size() % 2 == 0 ? series_.steps_per_point : 0;
      halve(points, join_points);
      series_.steps_per_point *= 2;
    }
  }

  size_t max_points_;
  MetricsSeries series_;
  int64_t line_number_ = 0;
  int64_t in_last_point_ = 0;
  int64_t unreadable_ = 0;
  int64_t first_unreadable_ = 0;
  int64_t replaced_ = 0;
  double last_peak_ = 0;
  double time_s_ = 0;
  std::map<std::string_view, Missing> not_finite_;
};

} // namespace

void ValueRange::add(double value) {
  if (std::isfinite(value)) {
    sum += value;
    ++count;
    least = std::min(least, value);
    most = std::max(most, value);
  }
}

void ValueRange::add(const ValueRange& other) {
  sum += other.sum;
  count += other.count;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

double ValueRange::mean() const {
  return count > 0 ? sum / static_cast<double>(count)
                   : std::numeric_limits<double>::quiet_NaN();
}

const ValueRange& MetricsPoint::operator[](std::string_view key) const {
  return values.at(index_of(key));
}

MetricsSeries MetricsSeries::read(const std::string& path, size_t max_points) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("cannot read \"{}\": {}", path, std::strerror(errno)));
  }
  SeriesReader reader(max_points);
  std::string buffer(kMaxLineBytes, '\0');
  while (file.peek() != std::ifstream::traits_type::eof()) {
    file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    if (file.fail()) { // longer than the buffer
      file.clear();
      file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
      reader.skip_long_line();
      continue;
    }
    // gcount() includes the line end, unless the file ends without one.
    const auto size = static_cast<size_t>(file.gcount()) - !file.eof();
    reader.take({buffer.data(), size}, file.eof());
  }
  return reader.finish();
}

} // namespace weft::train
