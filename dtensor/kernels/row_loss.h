#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/dim_shards.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor::kernels {

/// The classes that this rank has for some rows.
struct ClassPart {
  /// The groups that share the classes, one per mesh dim that shards them.
  /// Empty means that this rank has all classes.
  std::vector<mesh::Communicator*> groups = {};
  /// The classes of this rank, in order.
  RowRanges ranges = {};
  /// The number of all classes.
  int64_t classes = 0;
  /// The dim of the classes in the logits.
  int64_t dim = 0;
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;
};

/// Values per row.
struct RowLosses {
  /// The loss. 0 for ignored rows.
  at::Tensor loss;
  /// log(sum(exp(logits))).
  at::Tensor log_sum;
  /// The weight of the row in a mean. It has no gradient. Undefined: 1, and 0
  /// for ignored rows.
  at::Tensor weight;
};

/// Computes the cross entropy of rows of logits in float or better. `target`
/// has classes, or, if floating, the probabilities of this rank's classes.
/// `weight` has the weights of this rank's classes and may be undefined. See
/// Note [Loss parallel].
/// Collective: one all_gather over each of the groups. Backward does not
/// communicate.
RowLosses row_losses(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const ClassPart& part);

} // namespace weft::dtensor::kernels
