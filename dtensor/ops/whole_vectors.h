#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

// Note [Whole vectors]
// ~~~~~~~~~~~~~~~~~~~~
// libtorch's fused steps compute a tensor in vectors of up to 64 bytes and what
// is left after the last whole one by scalar instructions, which give other
// bits (with AVX-512: 13 of 9,900 elements of three steps of AdamW). An element
// would then be updated to other bits where its parameter is sharded otherwise.
// So what is left goes through scratch rows of one vector each, padded with
// zeros: as libtorch computes the vectors before it.

/// The lists of one call of a fused optimizer step on plain CPU tensors,
/// rearranged so that every tensor consists of complete vectors. See Note
/// [Whole vectors].
class WholeVectors {
 public:
  using List = std::vector<at::Tensor>;

  /// Replaces each tensor that does not consist of complete vectors by a view
  /// of its complete vectors, and appends a scratch row with a copy of the
  /// other elements to the same list. A tensor of less than one vector is
  /// replaced by its scratch row. Tensors at the same index of `lists` have
  /// equal sizes; empty lists stay empty. `numbers` are lists with one tensor
  /// of one element per tensor of `lists`, such as the optimizer's state_steps.
  /// If a scratch row is appended, the entry of its tensor is appended to
  /// `numbers` again. Tensors that are not on the CPU, or whose strides are not
  /// dense and equal in all lists, stay as they are.
  /// Lifetime: the lists must outlive this object.
  WholeVectors(
      const std::vector<List*>& lists,
      const std::vector<List*>& numbers);

  /// Returns true if a tensor consists of complete vectors.
  static bool is_whole(const at::Tensor& tensor);

  /// Returns true if copy_back() has something to copy.
  bool any() const { return !rests_.empty(); }
  /// Copies the results of the scratch rows to the tensors. To be called after
  /// the step.
  void copy_back() const;

 private:
  struct Rest {
    /// A view of the tensor, and a view of the scratch row.
    at::Tensor own;
    at::Tensor scratch;
  };

  /// Returns true if it added a scratch row to the lists, and false if the
  /// scratch row replaces a tensor without a complete vector.
  bool take(const std::vector<List*>& lists, size_t index);

  std::vector<Rest> rests_;
};

} // namespace weft::dtensor
