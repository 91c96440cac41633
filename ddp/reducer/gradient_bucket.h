#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "dtensor/spec/spec.h"

namespace weft::ddp {

/// How the gradients of a bucket lie while they are reduced.
enum class BucketMemory {
  /// One flat tensor with a view a parameter.
  kFlat,
  /// The gradients themselves.
  kInPlace,
  /// One sparse gradient.
  kSparse,
};

struct BucketLayout {
  BucketMemory memory = BucketMemory::kFlat;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Which of the reducer's groups reduces it.
  size_t group = 0;
  /// Where the gradients lie before they are reduced, if they are pending sums.
  std::optional<dtensor::DTensorSpec> pending;
  /// The parameter whose gradient must be ready before the bucket is reduced.
  std::optional<size_t> trigger;
  /// The flat tensor has one element more, behind the gradients.
  bool has_flag = false;
  /// Copies wait for fill().
  bool is_batched = false;
};

/// Gradients that are reduced together.
class GradientBucket {
 public:
  struct Slot {
    /// The parameter's index in the reducer.
    size_t parameter = 0;
    /// What is reduced. Shape of the parameter's local tensor.
    at::Tensor view;
    /// The same as the parameter's .grad(): a DTensor if the parameter is one.
    at::Tensor gradient;
    /// What fill() has to copy to `view`.
    at::Tensor source = {};
  };

  /// `parameters[i]` is the reducer's parameter `indices[i]`; all are on the
  /// same device. A flat bucket has memory after allocate().
  GradientBucket(
      std::vector<size_t> indices,
      std::vector<at::Tensor> parameters,
      BucketLayout layout);

  const BucketLayout& layout() const { return layout_; }
  const std::vector<Slot>& slots() const { return slots_; }
  /// Undefined unless the layout is flat.
  const at::Tensor& flat() const { return flat_; }
  /// Without the flag.
  at::Tensor gradients_only() const;
  /// What is reduced, slot by slot.
  std::vector<at::Tensor> views() const;

  /// Makes the memory of a flat bucket unless it has it.
  void allocate();
  /// Gives it up; gradients that are views keep theirs.
  void release();

  /// Puts a gradient's local tensor, divided by `divisor`, into its slot. It
  /// may lie there already.
  void copy_to_bucket(size_t slot, const at::Tensor& local, double divisor);
  /// Puts a gradient into its slot at once, as it is: more is to be added.
  void stash(size_t slot, const at::Tensor& local);
  /// Puts zeros where there is no gradient.
  void fill_with_zeros(size_t slot);
  /// Copies what copy_to_bucket() left to do, if the layout is batched.
  void fill(double divisor);
  /// Replaces what is reduced, e.g. by the sum.
  void set_sparse(const at::Tensor& sum) { slots_.at(0).view = sum; }
  /// The slot's .grad(): a pending sum until reduced, if this bucket has such.
  const at::Tensor& gradient_before_reduction(size_t slot);

  /// Raises the flag on this rank, and whether it was raised on any, once
  /// reduced.
  void raise_flag();
  bool is_flag_raised() const;
  void lower_flag();

 private:
  at::Tensor flag() const;

  BucketLayout layout_;
  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  std::vector<Slot> slots_;
};

} // namespace weft::ddp
