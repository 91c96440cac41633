#pragma once

#include <memory>

#include "config/recipe.h"
#include "data_parallel/comm_hooks/comm_hook.h"
#include "ddp/reducer/options.h"

namespace weft::recipes {

/// The recipe's section `ddp` as options; with train.dtype bfloat16, parameters
/// are computed with in it and kept in float32. Losses are divided by the
/// tokens of the whole global batch already, so replicas' gradients add up;
/// comm hooks make means, and losses are multiplied by the number of replicas
/// for them.
ddp::DistributedDataParallelOptions ddp_options(const Recipe& recipe);

/// The hook that the section names; null for none.
std::shared_ptr<ddp::CommHook> make_comm_hook(const DdpConfig& config);

} // namespace weft::recipes
