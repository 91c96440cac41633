#pragma once

#include "models/gpt2.h"
#include "models/plan_options.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of a GPT-2: q, k, v and c_fc cut by columns, both
/// c_proj by rows, the embedding and so the tied head by vocabulary; positions
/// whole on each rank. With sequence parallelism norms, dropout and the
/// residual stream are cut along the sequence.
tp::ParallelizePlan gpt2_plan(
    const PlanOptions& options,
    const Gpt2Config& config);

} // namespace weft::recipes
