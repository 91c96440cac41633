#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dtensor/fused/attention_blocks.h"

// The matmuls of an attention, block by block, for a range of heads. FloatHeads
// has those of forward and backward, TileHeads those of backward alone, because
// libtorch's forward uses AMX as well as it can be used. Their common members:
//
//   kScratch        the elements of a block's scores that caches hold
//   kTile           what lengths are filled up to multiples of
//   begin           takes a range of heads
//   scores          returns query * key^T of a block, in memory that the object
//                   reuses: [H, Q, K] or larger, filled up with zeros
//   value_products  returns grad * value^T of a block in the same way
//   add_value_grad  adds probabilities^T * grad
//   add_score_grad  adds score_grad^T * query to key's gradient, and computes
//                   score_grad * key, query's gradient
//   write_grads     writes the gradients of the range

namespace weft::dtensor::fused {

struct AttentionGrads {
  at::Tensor query, key, value;
};

/// Computes in float32, with oneDNN's matmuls of batches.
class FloatHeads {
 public:
  static constexpr int64_t kScratch = int64_t{1} << 18;
  static constexpr int64_t kTile = 1;

  FloatHeads(const AttentionInputs& inputs, const Blocks& blocks);

  void begin(const HeadRange& range);
  at::Tensor scores(const QueryBlock& block);
  /// Computes output = probabilities * value.
  void compute_output(const QueryBlock& block, const at::Tensor& probabilities);
  void write_output(const at::Tensor& output);
  at::Tensor value_products(const QueryBlock& block);
  void add_value_grad(const QueryBlock& block, const at::Tensor& probabilities);
  void add_score_grad(const QueryBlock& block, const at::Tensor& score_grad);
  void write_grads(const AttentionGrads& grads);

 private:
  /// The product of a block's rows of `left` and the rows of `right`, in
  /// `scratch`.
  at::Tensor multiply(
      const at::Tensor& scratch,
      const at::Tensor& left,
      const at::Tensor& right,
      const QueryBlock& block);

  const AttentionInputs& inputs_;
  const Blocks& blocks_;
  at::Tensor scratch_, grad_scratch_;
  HeadRange range_{};
  at::Tensor query_, key_, value_, grad_;
  at::Tensor output_, query_grad_, key_grad_, value_grad_;
};

/// Computes matmuls of bfloat16 with float32 sums in AMX's tiles, and the rest
/// in float32: probabilities and the gradients of scores are rounded to
/// bfloat16 before they are multiplied. Lengths are filled up to multiples of
/// kTile, so that libtorch compiles fewer kernels.
class TileHeads {
 public:
  static constexpr int64_t kScratch = int64_t{1} << 17;
  static constexpr int64_t kTile = 32;

  /// Returns true for the dtype and the head dim of `query` on this host.
  static bool takes(const at::Tensor& query);

  TileHeads(const AttentionInputs& inputs, const Blocks& blocks);

  void begin(const HeadRange& range);
  at::Tensor scores(const QueryBlock& block);
  at::Tensor value_products(const QueryBlock& block);
  void add_value_grad(const QueryBlock& block, const at::Tensor& probabilities);
  void add_score_grad(const QueryBlock& block, const at::Tensor& score_grad);
  void write_grads(const AttentionGrads& grads);

 private:
  /// The product of a block's rows of `left` and the columns of `pairs`, in
  /// `scratch`.
  at::Tensor multiply(
      const at::Tensor& scratch,
      const at::Tensor& left,
      const at::Tensor& pairs,
      const QueryBlock& block);
  at::Tensor rounded(const at::Tensor& scores);
  at::Tensor paired(const at::Tensor& scores);

  const AttentionInputs& inputs_;
  const Blocks& blocks_;
  int64_t queries_, keys_;
  at::Tensor scratch_, grad_scratch_, rounded_, pairs_;
  HeadRange range_{};
  /// By position, [H, L, D].
  at::Tensor query_, grad_, query_grad_;
  /// By element of a head, [H, D, L].
  at::Tensor query_by_dim_, grad_by_dim_, key_grad_by_dim_, value_grad_by_dim_;
  /// In pairs of positions [H, L / 2, D] and of elements [H, D / 2, L].
  at::Tensor key_pairs_, key_dim_pairs_, value_dim_pairs_;
};

} // namespace weft::dtensor::fused
