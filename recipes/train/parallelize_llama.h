#pragma once

#include "recipes/config/recipe.h"
#include "recipes/models/llama.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The tensor-parallel plan of a Llama: q, k, v, gate and up cut by columns, o
/// and down by rows, embedding and head by vocabulary. With sequence
/// parallelism the norms and the residual stream are cut along the sequence;
/// with loss parallelism the logits stay cut by vocabulary.
tp::ParallelizePlan llama_plan(const TpConfig& tp, bool tie_embeddings);

} // namespace weft::recipes
