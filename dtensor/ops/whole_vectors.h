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
// would then be updated to other bits where its parameter is cut otherwise. So
// what is left goes through scratch rows of one vector each, padded with zeros:
// as libtorch computes the vectors before it.

/// The lists of one call of a fused optimizer step on plain tensors of the CPU,
/// with elements in whole vectors only. See Note [Whole vectors].
class WholeVectors {
 public:
  using List = std::vector<at::Tensor>;

  /// Replaces tensors that are not of whole vectors by their whole vectors and,
  /// at the end of each list, a scratch row. `lists`: of tensors whose i-th
  /// ones belong together, of the same sizes; empty ones are left empty.
  /// `numbers`: lists of one number for each i, which a scratch row shares.
  /// What is not of the CPU, or not dense and of one order of dims, stays as it
  /// is. Lifetime: not beyond the lists.
  WholeVectors(
      const std::vector<List*>& lists,
      const std::vector<List*>& numbers);

  /// Whether a tensor is of whole vectors.
  static bool is_whole(const at::Tensor& tensor);

  /// Whether there is something to copy back.
  bool any() const { return !rests_.empty(); }
  /// To be called after the step: puts what the scratch rows have become where
  /// it belongs.
  void copy_back() const;

 private:
  struct Rest {
    /// A view of the tensor, and of the scratch row.
    at::Tensor own;
    at::Tensor scratch;
  };

  /// Returns whether it has added a scratch row to the lists, and not put it in
  /// the place of a tensor that has no whole vector.
  bool take(const std::vector<List*>& lists, size_t index);

  std::vector<Rest> rests_;
};

} // namespace weft::dtensor
