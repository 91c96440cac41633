#pragma once

#include <cstdint>

#include "config/recipe.h"

namespace weft::train {

/// Returns the learning rate of `step`, counted from 0. It grows linearly to
/// `peak_lr` over the first warmup_steps. Afterwards it falls from `peak_lr` at
/// step warmup_steps to min_ratio * peak_lr at the last step, along half a
/// cosine or a line, or stays constant.
double learning_rate(
    const config::LrScheduleConfig& schedule,
    double peak_lr,
    int64_t total_steps,
    int64_t step);

} // namespace weft::train
