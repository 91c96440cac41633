#pragma once

#include <optional>

#include "dtensor/kernels/row_loss.h"

namespace weft::dtensor::kernels {

/// Computes row_losses() with the device library's kernels, which read half
/// precision as it is and write no probabilities: forward reads the logits
/// once, backward reads them and writes their gradient. The numbers sent are
/// those of row_losses(). Without `weight`, which is for a mean of classes with
/// weights.
/// Returns nothing if there are no such kernels: on the CPU, for probabilities,
/// weights, smoothing, or logits that are not rows of classes.
std::optional<RowLosses> row_losses_on_gpu(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const ClassPart& part);

} // namespace weft::dtensor::kernels
