#pragma once

#include "models/moe.h"
#include "models/plan_options.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of a mixture-of-experts Llama: all but the
/// feed-forwards as llama_plan(); experts one after the other on the ranks, the
/// router whole on each. With sequence parallelism each rank routes its part of
/// the sequence, and rows go to their experts by all_to_all.
tp::ParallelizePlan moe_plan(
    const PlanOptions& options,
    const MoeConfig& config);

} // namespace weft::recipes
