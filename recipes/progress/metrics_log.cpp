#include "recipes/progress/metrics_log.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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

MetricsLog::MetricsLog(const std::string& path) : path_(path) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  if (!error) {
    errno = 0;
    file_.open(path, std::ios::trunc);
  }
  if (error || !file_) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "output_dir: cannot write \"{}\": {}",
        path,
        error ? error.message() : std::strerror(errno)));
  }
}

void MetricsLog::write(const StepMetrics& metrics) {
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
  if (metrics.eval_loss) {
    line["eval_loss"] = *metrics.eval_loss;
  }
  errno = 0;
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) {
    mesh::throw_error<c10::Error>(fmt::format(
        "[metrics] cannot write \"{}\": {}", path_, std::strerror(errno)));
  }
}

} // namespace weft::recipes
