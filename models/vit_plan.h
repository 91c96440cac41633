#pragma once

#include "models/plan_options.h"
#include "models/vit.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of a vision transformer: q, k, v and fc1 cut by
/// columns, o and fc2 by rows, the head by classes; the embeddings, which are
/// small, whole on each rank. With sequence parallelism norms, dropout and the
/// residual stream are cut along patches and class token, evenly or not, and
/// gathered once before the class token is taken.
tp::ParallelizePlan vit_plan(
    const PlanOptions& options,
    const VitConfig& config);

} // namespace weft::recipes
