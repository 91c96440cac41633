#pragma once

#include <vector>

#include <torch/csrc/autograd/variable.h>

#include "mesh/communicator/communicator.h"

namespace weft::dtensor::kernels {

/// Returns half precision in float, other dtypes as they are.
at::Tensor precise(const at::Tensor& tensor);

/// `count` numbers for each row x of this rank's logits, the first two being
/// m = max(x) and sum(exp(x - m)), and `extra` numbers for all rows. They lie
/// in one tensor, which is sent as it is. See Note [Loss parallel].
struct RowStatistics {
  at::Tensor buffer;
  /// The sizes of the logits without the dim of the classes.
  std::vector<int64_t> rows;
  int64_t count;

  /// Leaves the numbers unset. They have the dtype and device of `x`.
  RowStatistics(const at::Tensor& x, int64_t dim, int64_t count, int64_t extra);

  int64_t row_count() const;
  /// Number i of each row.
  at::Tensor operator[](int64_t i) const;
  at::Tensor extra() const;

  /// Sets the first two numbers.
  void set_exponentials(const at::Tensor& x, int64_t dim);
  /// Adds up what the ranks of each group know, in rank order: what one group
  /// knows together is what a rank tells the next one.
  /// Collective: the groups; one all_gather each.
  void combine(const std::vector<mesh::Communicator*>& groups);
  /// Computes log(sum(exp(x))) of each row.
  at::Tensor log_sum() const;

 private:
  void combine(mesh::Communicator& group);
};

/// Throws: NotImplementedError if one of the gradients that a backward got
/// requires a gradient itself.
void refuse_second_derivative(const torch::autograd::variable_list& grads);

} // namespace weft::dtensor::kernels
