#include "train/setup/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::train {

double learning_rate(
    const config::LrScheduleConfig& schedule,
    double peak_lr,
    int64_t total_steps,
    int64_t step) {
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) {
    return peak_lr * static_cast<double>(step + 1) /
           static_cast<double>(warmup);
  }
  if (schedule.type == config::LrScheduleType::kConstant) {
    return peak_lr;
  }
  const auto steps_down =
      static_cast<double>(std::max<int64_t>(total_steps - 1 - warmup, 1));
  const double part =
      std::clamp(static_cast<double>(step - warmup) / steps_down, 0.0, 1.0);
  const double height = schedule.type == config::LrScheduleType::kLinear
                            ? 1.0 - part
                            : 0.5 * (1.0 + std::cos(std::numbers::pi * part));
  return peak_lr * (schedule.min_ratio + (1.0 - schedule.min_ratio) * height);
}

} // namespace weft::train
