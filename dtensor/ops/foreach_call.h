#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

/// Whether a tensor of a first list can be computed on where it lies: nothing
/// is pending or deferred, and no two elements share memory.
bool is_ready_first(DTensorImpl& impl);
/// Whether an op can compute on `tensor`, of another list, together with
/// `first`, which may be null: it has the spec and the global sizes of `first`
/// (`dense`: and its order of dims in memory), or is a number on every rank.
bool lies_as(const at::Tensor& tensor, const DTensorImpl* first, bool dense);

/// A call of an op on lists of tensors, its arguments on a stack. The i-th
/// tensors of its lists belong together. See Note [Foreach ops].
class ForeachCall {
 public:
  ForeachCall(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  c10::IValue& argument(size_t index) const { return arguments_[index]; }
  /// The first argument that is a list of tensors.
  c10::ArrayRef<c10::IValue> first_list() const;

  /// All lists are of one length or empty, and all i-th tensors have one spec
  /// with nothing pending and the same global sizes, or are whole and of no
  /// dims. `dense`: and one order of dims in memory.
  bool is_aligned(bool dense) const;
  /// Replaces DTensors by their local tensors. Allocates nothing where nobody
  /// else holds the lists.
  /// Throws: c10::ValueError if a single tensor argument is not whole.
  void to_locals() const;
  /// Replaces DTensors by their local tensors, brought to where the first
  /// list's tensors lie.
  /// Collective: all ranks of the tensors' meshes.
  /// Throws: c10::ValueError for what cannot be brought there.
  void align_to_first() const;

  /// Tensors whose note_write() is due when the op has run; none where no
  /// writes are watched.
  std::vector<at::Tensor> writes_to_note() const;
  /// To be called with them after the op.
  void note_writes(const std::vector<at::Tensor>& written) const;

  /// Replaces single whole DTensors that an op reads as numbers.
  void unwrap_scalars() const;
  /// Throws: c10::ValueError if a list has a plain tensor of one dim or more.
  void check_no_plain_tensors() const;
  /// Throws: c10::ValueError if a tensor of the first list is pending.
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

  /// "argument `grads`[3] ...".
  std::string where(size_t argument, size_t index) const;
  /// The i-th tensors of all lists.
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
