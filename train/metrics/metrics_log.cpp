#include "train/metrics/metrics_log.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/error/error.h"

namespace weft::train {

double peak_rss_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0; // in KiB on Linux
}

namespace {

constexpr const char* kEvalInterrupted = "eval_interrupted";

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("output_dir: cannot write \"{}\": {}", path, reason));
}

void make_folder_of(const std::string& path) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  if (error) {
    refuse(path, error.message());
  }
}

/// Returns the step of a complete line. Returns nothing for other lines.
std::optional<int64_t> step_of(const std::string& line) {
  const auto json = base::try_parse_json(line);
  if (!json.is_object() || !json.contains("step") ||
      !json.at("step").is_number_integer()) {
    return std::nullopt;
  }
  return json.at("step").get<int64_t>();
}

struct Kept {
  int64_t step = 0;
  int64_t bytes = 0;
  /// The number of kept lines that have no step or are out of order.
  int64_t odd_lines = 0;
  int64_t first_odd_line = 0;
};

/// Finds the part up to the last line whose step is at most `last_step`.
Kept find_kept(const std::string& path, int64_t last_step) {
  std::ifstream file(path);
  Kept kept;
  Kept seen;
  int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    seen.bytes += static_cast<int64_t>(line.size()) + 1;
    const auto step = step_of(line);
    if (step && *step > seen.step && *step <= last_step) {
      seen.step = *step;
      kept = seen;
    } else if (seen.odd_lines++ == 0) {
      seen.first_odd_line = number;
    }
  }
  return kept;
}

Kept cut_after(const std::string& path, int64_t last_step) {
  if (!std::filesystem::is_regular_file(path)) {
    return {}; // a device or pipe cannot be truncated
  }
  const auto kept = find_kept(path, last_step);
  std::error_code error;
  std::filesystem::resize_file(path, kept.bytes, error);
  if (error) {
    refuse(path, error.message());
  }
  return kept;
}

} // namespace

std::string metrics_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},
      {"tokens", metrics.tokens},
      {"tokens_per_s", metrics.tokens_per_s},
      {"step_ms", metrics.step_ms},
      {"data_ms", metrics.data_ms},
      {"comm_ms", metrics.comm_ms},
      {"checkpoint_ms", metrics.checkpoint_ms},
      {"peak_rss_mb", metrics.peak_rss_mb}};
  if (metrics.peak_device_mb) {
    line["peak_device_mb"] = *metrics.peak_device_mb;
  }
  if (metrics.eval_loss) {
    line["eval_loss"] = *metrics.eval_loss;
  }
  if (metrics.ema_eval_loss) {
    line["ema_eval_loss"] = *metrics.ema_eval_loss;
  }
  if (metrics.groups > 0) {
    line["groups"] = metrics.groups;
    line["epoch"] = metrics.epoch;
  }
  if (metrics.skipped) {
    line["skipped"] = true;
  }
  if (metrics.eval_interrupted) {
    line[kEvalInterrupted] = true;
  }
  return base::strict_json_text(line);
}

bool lacks_evaluation(const std::string& line) {
  const auto json = base::try_parse_json(line);
  return json.is_object() && json.value(kEvalInterrupted, false);
}

std::string with_evaluation(
    const std::string& line,
    double eval_loss,
    std::optional<double> ema_eval_loss) {
  auto json = base::parse_json<nlohmann::ordered_json>(line);
  json.erase(kEvalInterrupted);
  json["eval_loss"] = eval_loss;
  if (ema_eval_loss) {
    json["ema_eval_loss"] = *ema_eval_loss;
  }
  return base::strict_json_text(json);
}

void MetricsLog::check_writable(const std::string& path) {
  make_folder_of(path);
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) {
    refuse(path, std::strerror(errno));
  }
}

MetricsLog::MetricsLog(const std::string& path, int64_t last_step) {
  check_writable(path);
  const auto kept = cut_after(path, last_step);
  last_step_ = kept.step;
  if (kept.odd_lines > 0) {
    notice_ = fmt::format(
        "could not parse {} of \"{}\" as steps (kept in the file; the first is "
        "line {})",
        kept.odd_lines == 1 ? "1 line"
                            : fmt::format("{} lines", kept.odd_lines),
        path,
        kept.first_odd_line);
  }
  file_.emplace(path);
}

std::string MetricsLog::write(const StepMetrics& metrics) {
  return write_line(metrics_line(metrics));
}

std::string MetricsLog::write_line(const std::string& line) {
  return file_->append(line + '\n');
}

} // namespace weft::train
