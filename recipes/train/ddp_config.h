#pragma once

#include <memory>

#include "ddp/comm_hook.h"
#include "ddp/options.h"
#include "recipes/config/recipe.h"

namespace weft::recipes {

/// The recipe's section `ddp` as options. Losses are divided by the tokens of
/// the whole global batch already, so replicas' gradients add up; comm hooks
/// make means, and losses are multiplied by the number of replicas for them.
ddp::DistributedDataParallelOptions ddp_options(const DdpConfig& config);

/// The hook that the section names; null for none.
std::shared_ptr<ddp::CommHook> make_comm_hook(const DdpConfig& config);

} // namespace weft::recipes
