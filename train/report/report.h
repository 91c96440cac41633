#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "train/report/run_data.h"

namespace weft::train {

/// Returns one self-contained page: the charts of one run, or of several
/// overlaid, the mesh and recipe of each, and the differences between the
/// recipes. The page loads no other files. Text from the runs is escaped.
std::string report_html(std::span<const RunData> runs);

/// Writes RUN/report.html from the content of the run's folder and returns its
/// path.
/// Throws: mesh::UsageError if the folder is not that of a run, or if the file
/// cannot be written.
std::string write_report(const std::string& run_folder);

/// Writes one report of several runs to `path`.
/// Throws: mesh::UsageError like write_report(run_folder).
void write_report(
    std::span<const std::string> run_folders,
    const std::string& path);

/// Updates a run's report while the run is in progress. To be used on one rank.
/// Errors never end the run: the functions return them as text, or "", and
/// throw nothing.
class LiveReport {
 public:
  explicit LiveReport(std::string run_folder);

  /// Writes each rank's share of the parameters with write_rank_shares().
  std::string write_layout(
      const torch::nn::Module& model,
      const mesh::DeviceMesh& mesh);

  /// Writes the report, unless reports have taken more than 1 % of the time so
  /// far. With `is_last` it is always written.
  std::string refresh(bool is_last = false);

 private:
  using Clock = std::chrono::steady_clock;

  std::string run_folder_;
  Clock::time_point start_ = Clock::now();
  Clock::duration spent_{};
};

} // namespace weft::train
