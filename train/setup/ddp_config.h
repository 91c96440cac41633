#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "config/recipe.h"
#include "data_parallel/comm_hooks/comm_hook.h"
#include "ddp/reducer/options.h"

namespace weft::train {

/// Returns the dtype of ddp.reduce_dtype or fsdp.reduce_dtype. Empty for none.
std::optional<c10::ScalarType> reduce_dtype(config::ReduceDtype dtype);

/// Returns the dtype to which parameters are cast for forward and backward, if
/// they are.
std::optional<c10::ScalarType> param_dtype(const config::Recipe& recipe);

/// Returns the options of the recipe's section `ddp`. Losses are already
/// divided by the tokens of the global batch, so that gradients are summed over
/// replicas. Comm hooks average gradients, and losses are multiplied by the
/// number of replicas for them.
ddp::DistributedDataParallelOptions ddp_options(const config::Recipe& recipe);

/// Returns the comm hook of section fsdp if the recipe shards the model, or
/// else of section ddp. Null means that there is none.
std::shared_ptr<data_parallel::CommHook> make_comm_hook(
    const config::Recipe& recipe);

} // namespace weft::train
