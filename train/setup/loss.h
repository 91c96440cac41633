#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/recipe.h"
#include "models/model.h"

namespace weft::recipes {

/// Targets of a global batch: its tokens, or its images.
int64_t targets_per_step(const Recipe& recipe);
/// "16 x 128 tokens" or "64 images".
std::string describe_batch(const Recipe& recipe);

/// The cross entropy of a micro-batch's targets, summed and divided by
/// `targets_in_all`, the number of valid ones of the whole global batch: the
/// losses of all micro-batches and replicas add up to the mean over targets.
/// Shapes: logits [B, T, V], targets [B, T]; or [B, classes] and [B].
at::Tensor token_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    int64_t targets_in_all);

/// What a micro-batch adds to that which training minimises: token_loss() with
/// the recipe's label smoothing and z-loss, and the model's auxiliary_loss() a
/// sample. After the forward() that made `logits`.
at::Tensor training_loss(
    const Recipe& recipe,
    Model& model,
    const at::Tensor& logits,
    const at::Tensor& targets);

} // namespace weft::recipes
