#pragma once

#include <memory>

#include "config/recipe.h"
#include "data_parallel/comm_hooks/comm_hook.h"
#include "ddp/reducer/options.h"

namespace weft::recipes {

/// Returns the options of the recipe's section `ddp`. With train.dtype
/// bfloat16, computation uses bfloat16 and parameters are kept in float32.
/// Losses are already divided by the tokens of the global batch, so that
/// gradients are summed over replicas. Comm hooks average gradients, and losses
/// are multiplied by the number of replicas for them.
ddp::DistributedDataParallelOptions ddp_options(const Recipe& recipe);

/// Returns the comm hook that the section selects, or null if it selects none.
std::shared_ptr<ddp::CommHook> make_comm_hook(const DdpConfig& config);

} // namespace weft::recipes
