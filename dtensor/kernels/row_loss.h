#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/dim_shards.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor::kernels {

/// Which classes of some rows this rank has.
struct ClassPart {
  /// The groups that share the classes, one a mesh dim that cuts them; none:
  /// all are here.
  std::vector<mesh::Communicator*> groups = {};
  /// Those that are here, in the order in which they lie.
  RowRanges ranges = {};
  /// All of them.
  int64_t classes = 0;
  /// The dim of the logits in which they are.
  int64_t dim = 0;
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;
};

/// One number a row each.
struct RowLosses {
  /// 0 where the target is to be ignored.
  at::Tensor loss;
  /// log(sum(exp(logits))).
  at::Tensor log_sum;
  /// What the row counts in a mean; has no gradient.
  at::Tensor weight;
};

/// The cross entropy of rows of logits, in float or better. `target`: classes,
/// or, floating, the probabilities of the classes that are here. `weight`:
/// those of the classes that are here; may be undefined. See
/// Note [Loss parallel].
/// Collective: one all_gather over each of the groups; backward none.
RowLosses row_losses(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const ClassPart& part);

} // namespace weft::dtensor::kernels
