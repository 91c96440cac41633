#pragma once

#include "models/mlp.h"
#include "models/plan_options.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of an MLP: layers cut by columns and by rows in
/// turn, so that every second hidden layer is cut and none is gathered.
tp::ParallelizePlan mlp_plan(
    const PlanOptions& options,
    const MlpConfig& config);

} // namespace weft::recipes
