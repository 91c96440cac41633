#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec.h"

namespace weft::ddp {

/// The memory in which the gradients of some parameters are reduced together:
/// one flat tensor with a view a parameter.
class GradientBucket {
 public:
  struct Slot {
    /// The parameter's index in the reducer.
    size_t parameter = 0;
    /// Shape of the parameter's local tensor, in the bucket's memory.
    at::Tensor view;
    /// The same as the parameter's .grad(): a DTensor if the parameter is one.
    at::Tensor gradient;
  };

  /// `parameters[i]` is the reducer's parameter `indices[i]`; all have the
  /// same dtype and device. `pending`: where the gradients lie before they are
  /// reduced, if they are pending sums. With `has_flag` the flat tensor has one
  /// element more, behind the gradients.
  GradientBucket(
      std::vector<size_t> indices,
      const std::vector<at::Tensor>& parameters,
      std::optional<dtensor::DTensorSpec> pending,
      bool has_flag);

  const at::Tensor& flat() const { return flat_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::optional<dtensor::DTensorSpec>& pending() const {
    return pending_;
  }

  /// Puts a gradient's local tensor, divided by `divisor`, into its slot. It
  /// may lie there already.
  void put(size_t slot, const at::Tensor& local, double divisor);
  /// Puts zeros where there is no gradient.
  void put_nothing(size_t slot);
  /// The slot's .grad(): a pending sum until reduced, if this bucket has such.
  const at::Tensor& gradient_before_reduction(size_t slot);

  /// Raises the flag on this rank, and whether it was raised on any, once
  /// reduced.
  void raise_flag();
  bool is_flag_raised() const;
  void lower_flag();

 private:
  at::Tensor flag() const;

  at::Tensor flat_;
  std::vector<Slot> slots_;
  std::optional<dtensor::DTensorSpec> pending_;
  bool has_flag_;
};

} // namespace weft::ddp
