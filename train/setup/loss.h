#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/recipe.h"
#include "models/model.h"

namespace weft::train {

/// Returns the number of targets in a global batch: its tokens, or its images.
int64_t targets_per_step(const config::Recipe& recipe);
/// Returns "16 x 128 tokens" or "64 images".
std::string describe_batch(const config::Recipe& recipe);

/// Returns the cross entropy, summed over the targets of a micro-batch and
/// divided by `targets_in_all`, the number of valid targets in the global
/// batch. The losses of all micro-batches and replicas then add up to the mean
/// over targets.
/// Shapes: logits [B, T, V], targets [B, T]; or [B, classes] and [B].
at::Tensor token_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    int64_t targets_in_all);

/// Returns the contribution of a micro-batch to the training loss: token_loss()
/// with the recipe's label smoothing and z-loss, plus the model's
/// auxiliary_loss() per sample. To be called after the forward() that computed
/// `logits`.
at::Tensor training_loss(
    const config::Recipe& recipe,
    models::Model& model,
    const at::Tensor& logits,
    const at::Tensor& targets);

} // namespace weft::train
