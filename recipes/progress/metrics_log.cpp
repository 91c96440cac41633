#include "recipes/progress/metrics_log.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mesh/error.h"

namespace weft::recipes {

double peak_rss_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0; // Linux: KiB
}

namespace {

constexpr const char* kEvalCut = "eval_cut";

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

/// The step of a whole line, or none.
std::optional<int64_t> step_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") ||
      !json.at("step").is_number_integer()) {
    return std::nullopt;
  }
  return json.at("step").get<int64_t>();
}

/// Cuts `path` after the last line up to `last_step`; returns that line's step.
int64_t cut_after(const std::string& path, int64_t last_step) {
  if (!std::filesystem::is_regular_file(path)) {
    return 0; // A device or pipe keeps nothing to cut.
  }
  std::ifstream file(path);
  int64_t kept_step = 0;
  int64_t kept_bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto step = step_of(line);
    if (!step || *step > last_step || *step <= kept_step) {
      break;
    }
    kept_step = *step;
    kept_bytes += static_cast<int64_t>(line.size()) + 1;
  }
  file.close();
  std::error_code error;
  std::filesystem::resize_file(path, kept_bytes, error);
  if (error) {
    refuse(path, error.message());
  }
  return kept_step;
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
  if (metrics.skipped) {
    line["skipped"] = true;
  }
  if (metrics.eval_cut) {
    line[kEvalCut] = true;
  }
  return line.dump();
}

bool lacks_evaluation(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  return json.is_object() && json.value(kEvalCut, false);
}

std::string with_evaluation(
    const std::string& line,
    double eval_loss,
    std::optional<double> ema_eval_loss) {
  auto json = nlohmann::ordered_json::parse(line);
  json.erase(kEvalCut);
  json["eval_loss"] = eval_loss;
  if (ema_eval_loss) {
    json["ema_eval_loss"] = *ema_eval_loss;
  }
  return json.dump();
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
  last_step_ = cut_after(path, last_step);
  file_.emplace(path);
}

std::string MetricsLog::write(const StepMetrics& metrics) {
  return write_line(metrics_line(metrics));
}

std::string MetricsLog::write_line(const std::string& line) {
  return file_->append(line + '\n');
}

} // namespace weft::recipes
