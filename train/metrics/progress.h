#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "train/metrics/metrics_log.h"

namespace weft::recipes {

/// Shows how training goes: on a terminal a bar that is redrawn in place, else
/// a line each `log_every` steps (and for the first and last).
class Progress {
 public:
  struct Options {
    int64_t total_steps = 1;
    int64_t log_every = 10;
    bool is_terminal = false;
    /// Columns of the terminal; 0: ask it, each time.
    int64_t columns = 0;
  };

  /// Lifetime: `out` outlives this.
  Progress(std::FILE* out, Options options);
  /// Leaves the cursor on a line of its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After every step, the steps before a resumed one left out.
  void step_done(const StepMetrics& metrics);
  /// After the evaluation of a step, which has an eval_loss.
  void eval_done(const StepMetrics& metrics);
  /// A line of its own, above the bar.
  void message(std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;

  int64_t columns() const;
  void erase_bar();
  void draw_bar();

  std::FILE* out_;
  Options options_;
  StepMetrics last_;
  /// Decaying mean time of a step, for the ETA.
  double mean_step_ms_ = 0;
  bool bar_is_drawn_ = false;
  Clock::time_point drawn_at_{};
};

/// "step 10/200  loss 3.2101  grad_norm 1.02  lr 5.0e-04  12345 tokens/s"
std::string step_line(const StepMetrics& metrics, int64_t total_steps);

/// The bar, at most `columns` wide: parts that do not fit are left out.
/// `eta_ms` is the time that the steps to come will take.
std::string bar_line(
    const StepMetrics& metrics,
    int64_t total_steps,
    double eta_ms,
    int64_t columns);

} // namespace weft::recipes
