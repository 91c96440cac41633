#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::models {

// Shape suffixes: see llama.h.

// Note [Cached keys and values]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A layer's keys and values lie in two buffers [B, K, room, d] that are longer
// than what is in them: a token is written into its place, and attention reads
// the narrowed buffer, so that no step copies what earlier ones left. A buffer
// that is full is padded to half as much again. All of it is libtorch's own
// ops: where keys and values are DTensors the buffers are DTensors that are cut
// as they are, each rank keeping its heads.

/// The keys and values of one attention layer for the tokens that it has seen.
class LayerCache {
 public:
  explicit LayerCache(int64_t expected_tokens) : expected_(expected_tokens) {}

  /// Appends the keys and values of new tokens.
  /// Shapes: k_BKTd, v_BKTd of the new tokens.
  void append(const at::Tensor& k_BKTd, const at::Tensor& v_BKTd);

  /// The number of tokens seen.
  int64_t length() const { return length_; }
  /// Returns the keys of all tokens seen, and v_BKTd() their values, without a
  /// copy.
  at::Tensor k_BKTd() const { return k_.narrow(2, 0, length_); }
  at::Tensor v_BKTd() const { return v_.narrow(2, 0, length_); }
  /// Repeats the row of a batch of one `rows` times.
  void repeat_rows(int64_t rows);

 private:
  int64_t expected_;
  int64_t length_ = 0;
  at::Tensor k_;
  at::Tensor v_;
};

/// The state that a decoder keeps for the tokens that it has seen, with one row
/// per sequence of the batch. See Model::forward_cached().
class KvCache {
 public:
  /// Allocates space for `expected_tokens` tokens at once, and more as needed.
  explicit KvCache(int64_t expected_tokens = 0) : expected_(expected_tokens) {}

  /// Returns the cache of attention layer `index`.
  LayerCache& layer(size_t index);
  /// The number of tokens that all layers have seen.
  int64_t length() const;
  /// Expands a batch of one to `rows` equal rows.
  void repeat_rows(int64_t rows);

  /// Appends `tokens` and returns all tokens so far. For models that cache no
  /// keys and values.
  /// Shapes: tokens [B, T].
  at::Tensor append_tokens(const at::Tensor& tokens);

 private:
  int64_t expected_;
  std::vector<LayerCache> layers_;
  at::Tensor tokens_;
};

/// Computes causal attention of new tokens over the tokens in `cache` and over
/// themselves, and appends the new keys and values to `cache`. If `cache` is
/// null, the new tokens attend only to themselves.
/// Shapes: q_BHTd; k_BKTd and v_BKTd, where H is a multiple of K; to [B, H, T,
/// d].
at::Tensor causal_attention(
    const at::Tensor& q_BHTd,
    const at::Tensor& k_BKTd,
    const at::Tensor& v_BKTd,
    double dropout_p,
    LayerCache* cache);

} // namespace weft::models
