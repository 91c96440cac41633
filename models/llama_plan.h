#pragma once

#include "models/llama.h"
#include "models/plan_options.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of a Llama: q, k, v, gate and up cut by columns, o
/// and down by rows, embedding and head by vocabulary. With sequence
/// parallelism the norms and the residual stream are cut along the sequence;
/// with loss parallelism the logits stay cut by vocabulary. Where the heads of
/// keys and values are no multiple of the ranks, k and v are whole on each.
tp::ParallelizePlan llama_plan(
    const PlanOptions& options,
    const LlamaConfig& config);

} // namespace weft::recipes
