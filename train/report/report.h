#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "train/report/run_data.h"

namespace weft::recipes {

/// One page with everything in it: charts of one run, or of several on top of
/// each other, each one's mesh and recipe, and where the recipes differ. It
/// loads nothing. Text from the runs stays text whatever it says.
std::string report_html(std::span<const RunData> runs);

/// Writes RUN/report.html from what the run's folder holds; gives its path.
/// Throws: mesh::UsageError if the folder is not a run's or the file cannot be
/// written.
std::string write_report(const std::string& run_folder);

/// The same for several runs, at `path`.
void write_report(
    std::span<const std::string> run_folders,
    const std::string& path);

/// Keeps a run's report up to date while the run goes on; one rank has one. A
/// report is no reason to end a run: nothing is thrown, what went wrong comes
/// back in words, or "".
class LiveReport {
 public:
  explicit LiveReport(std::string run_folder);

  /// Writes each rank's share of the parameters: write_rank_shares().
  std::string write_layout(
      const torch::nn::Module& model,
      const mesh::DeviceMesh& mesh);

  /// Writes it, unless reports took over 1 % of the time up to here; `is_last`
  /// always writes.
  std::string refresh(bool is_last = false);

 private:
  using Clock = std::chrono::steady_clock;

  std::string run_folder_;
  Clock::time_point start_ = Clock::now();
  Clock::duration spent_{};
};

} // namespace weft::recipes
