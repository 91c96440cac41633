#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "train/metrics/metrics_log.h"

namespace weft::train {

/// Shows the progress of training. On a terminal this is a bar that is redrawn
/// in place, otherwise a line for every `log_every` steps and for the first and
/// last step.
class Progress {
 public:
  struct Options {
    int64_t total_steps = 1;
    int64_t log_every = 10;
    bool is_terminal = false;
    /// The width of the terminal in columns. 0 queries the terminal for each
    /// bar.
    int64_t columns = 0;
  };

  /// Lifetime: `out` must outlive this.
  Progress(std::FILE* out, Options options);
  /// Ends the line of the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// To be called after each step of this process. Steps before a resume are
  /// not reported.
  void step_done(const StepMetrics& metrics);
  /// To be called after the evaluation of a step. `metrics` must have an
  /// eval_loss.
  void eval_done(const StepMetrics& metrics);
  /// Prints a line above the bar.
  void message(std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;

  int64_t columns() const;
  void erase_bar();
  void draw_bar();

  std::FILE* out_;
  Options options_;
  StepMetrics last_;
  /// The exponentially decaying mean of the step time, for the ETA.
  double mean_step_ms_ = 0;
  bool bar_is_drawn_ = false;
  Clock::time_point drawn_at_{};
};

/// Returns "step 10/200  loss 3.2101  grad_norm 1.02  lr 5.0e-04  12345
/// tokens/s".
std::string step_line(const StepMetrics& metrics, int64_t total_steps);

/// Returns the bar, at most `columns` wide. Parts that do not fit are left out.
/// `eta_ms` is the expected time of the remaining steps.
std::string bar_line(
    const StepMetrics& metrics,
    int64_t total_steps,
    double eta_ms,
    int64_t columns);

} // namespace weft::train
