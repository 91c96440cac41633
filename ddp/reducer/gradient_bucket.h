#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "dtensor/spec/spec.h"

namespace weft::ddp {

/// The memory of a bucket's gradients during the reduction.
enum class BucketMemory {
  /// One flat tensor with one view per parameter.
  kFlat,
  /// The gradients themselves.
  kInPlace,
  /// One sparse gradient.
  kSparse,
};

struct BucketLayout {
  BucketMemory memory = BucketMemory::kFlat;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// The index of the reducer's group that reduces it.
  size_t group = 0;
  /// The spec of the gradients before the reduction, if they are Partial.
  std::optional<dtensor::DTensorSpec> pending;
  /// The parameter whose gradient must be ready before the bucket is reduced.
  std::optional<size_t> trigger;
  /// True if the flat tensor has one more element after the gradients.
  bool has_flag = false;
  /// True if copies are delayed until fill().
  bool is_batched = false;
};

/// Gradients that are reduced together.
class GradientBucket {
 public:
  struct Slot {
    /// The parameter's index in the reducer.
    size_t parameter = 0;
    /// The tensor that is reduced. It has the shape of the parameter's local
    /// tensor.
    at::Tensor view;
    /// The parameter's .grad(): a DTensor if the parameter is one.
    at::Tensor gradient;
    /// The tensor that fill() copies to `view`.
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
  /// Returns the flat tensor without the flag.
  at::Tensor gradients_only() const;
  /// Returns the tensors that are reduced, in slot order.
  std::vector<at::Tensor> views() const;

  /// Allocates a flat bucket unless it has memory.
  void allocate();
  /// Frees the memory. Gradients that are views keep theirs alive.
  void release();

  /// Copies a gradient's local tensor, divided by `divisor`, to its slot. It
  /// may already be there.
  void copy_to_bucket(size_t slot, const at::Tensor& local, double divisor);
  /// Copies a gradient to its slot immediately and undivided, because more will
  /// be added.
  void stash(size_t slot, const at::Tensor& local);
  /// Fills the slot of a missing gradient with zeros.
  void fill_with_zeros(size_t slot);
  /// Runs the copies that copy_to_bucket() delayed, if the layout is batched.
  void fill(double divisor);
  /// Replaces the sparse gradient that is reduced, e.g. by the sum.
  void set_sparse(const at::Tensor& sum) { slots_.at(0).view = sum; }
  /// Returns the slot's .grad(), which is Partial until it is reduced if the
  /// bucket has a Partial spec.
  const at::Tensor& gradient_before_reduction(size_t slot);

  /// Sets the flag on this rank, and after the reduction returns whether any
  /// rank set it.
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
