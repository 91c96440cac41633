#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

/// Returns true if a tensor of a first list can be used as it is: it is not
/// Partial or deferred, and its elements do not overlap in memory.
bool is_ready_first(DTensorImpl& impl);
/// Returns true if an op can compute on `tensor`, of another list, together
/// with `first`, which may be null: either it has the spec and the global sizes
/// of `first` (`dense`: and its strides), or it is a replicated tensor without
/// dims.
bool lies_as(const at::Tensor& tensor, const DTensorImpl* first, bool dense);

/// A call of an op on lists of tensors, with its arguments on a stack. The i-th
/// tensors of its lists belong together. See Note [Foreach ops].
class ForeachCall {
 public:
  ForeachCall(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  c10::IValue& argument(size_t index) const { return arguments_[index]; }
  /// Returns the first argument that is a list of tensors.
  c10::ArrayRef<c10::IValue> first_list() const;

  /// Returns true if all lists have the same length or are empty, and all i-th
  /// tensors have one spec without Partial and the same global sizes, or are
  /// replicated and have no dims. `dense`: and the same order of dims in
  /// memory.
  bool is_aligned(bool dense) const;
  /// Replaces DTensors by their local tensors. A tensor argument outside the
  /// lists is redistributed to Replicate first. Does not allocate if the lists
  /// have no other owner.
  /// Throws: c10::ValueError if a tensor argument outside the lists has no
  /// values yet, or if the op writes to it and it is not replicated.
  void to_locals() const;
  /// Replaces DTensors by their local tensors, redistributed to the specs of
  /// the first list's tensors.
  /// Collective: all ranks of the tensors' meshes.
  /// Throws: c10::ValueError for a tensor that cannot be redistributed.
  void align_to_first() const;

  /// Returns the tensors for which note_writes() must be called after the op.
  /// Empty if no writes are watched.
  std::vector<at::Tensor> writes_to_note() const;
  /// Records writes. To be called after the op.
  void note_writes(const std::vector<at::Tensor>& written) const;

  /// Replaces single replicated DTensors that an op reads as numbers.
  void unwrap_scalars() const;
  /// Throws: c10::ValueError if a list has a plain tensor with at least one
  /// dim.
  void check_no_plain_tensors() const;
  /// Throws: c10::ValueError if a tensor of the first list is Partial.
  void check_no_partial_writes() const;

 private:
  bool is_aligned_list(
      c10::ArrayRef<c10::IValue> first,
      c10::ArrayRef<c10::IValue> list,
      bool dense) const;
  bool is_written(size_t argument) const;
  bool scales_gradients() const;
  at::Tensor full_scalar(const at::Tensor& tensor, size_t argument) const;
  at::Tensor aligned(size_t argument, size_t index) const;
  at::Tensor aligned_part(size_t argument, size_t index, const DTensorSpec& to)
      const;
  void check_lengths() const;
  const DTensorSpec* spec_at(size_t index) const;

  /// Returns "argument `grads`[3] ...".
  std::string where(size_t argument, size_t index) const;
  /// Describes the i-th tensors of all lists.
  std::string describe_group(size_t index) const;
  std::string describe_rank() const;
  [[noreturn]] void
  refuse(size_t argument, size_t index, const std::string& why) const;

  const c10::OperatorHandle& op_;
  c10::IValue* arguments_;
  size_t count_;
  size_t first_list_;
};

} // namespace weft::dtensor
