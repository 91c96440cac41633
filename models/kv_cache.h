#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::recipes {

// Shape suffixes: see llama.h.

// Note [Cached keys and values]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A layer's keys and values lie in two buffers [B, K, room, d] that are longer
// than what is in them: a token is written into its place, and attention reads
// the narrowed buffer, so that no step copies what earlier ones left. A buffer
// that is full is padded to half as much again. All of it is libtorch's own
// ops: where keys and values are DTensors the buffers are DTensors that are cut
// as they are, each rank keeping its heads.

/// Keys and values of one attention layer for the tokens that it has seen.
class LayerCache {
 public:
  explicit LayerCache(int64_t expected_tokens) : expected_(expected_tokens) {}

  /// Appends those of new tokens.
  /// Shapes: k_BKTd, v_BKTd of the new tokens.
  void append(const at::Tensor& k_BKTd, const at::Tensor& v_BKTd);

  /// Tokens seen.
  int64_t length() const { return length_; }
  /// Of all tokens, without a copy.
  at::Tensor k_BKTd() const { return k_.narrow(2, 0, length_); }
  at::Tensor v_BKTd() const { return v_.narrow(2, 0, length_); }
  /// The rows of a batch of one, `rows` times.
  void repeat_rows(int64_t rows);

 private:
  int64_t expected_;
  int64_t length_ = 0;
  at::Tensor k_;
  at::Tensor v_;
};

/// What a decoder remembers of the tokens that it has seen, a row a sequence of
/// the batch; see Model::forward_cached().
class KvCache {
 public:
  /// Makes room for so many tokens at once, and more as needed.
  explicit KvCache(int64_t expected_tokens = 0) : expected_(expected_tokens) {}

  /// Of the `index`th attention layer.
  LayerCache& layer(size_t index);
  /// Tokens that all layers have seen.
  int64_t length() const;
  /// Makes a batch of `rows` equal rows of a batch of one.
  void repeat_rows(int64_t rows);

  /// For a model that keeps no keys and values: all tokens so far, `tokens`
  /// among them.
  /// Shapes: tokens [B, T].
  at::Tensor append_tokens(const at::Tensor& tokens);

 private:
  int64_t expected_;
  std::vector<LayerCache> layers_;
  at::Tensor tokens_;
};

/// Causal attention of new tokens over those in `cache`, which takes theirs
/// before, and over themselves; null: over themselves alone.
/// Shapes: q_BHTd; k_BKTd and v_BKTd, H being a multiple of K; to [B, H, T, d].
at::Tensor causal_attention(
    const at::Tensor& q_BHTd,
    const at::Tensor& k_BKTd,
    const at::Tensor& v_BKTd,
    double dropout_p,
    LayerCache* cache);

} // namespace weft::recipes
