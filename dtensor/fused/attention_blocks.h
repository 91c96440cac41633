#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

// Shape suffixes: B samples, H heads, L queries or keys, Q queries, K keys, D
// of a head.

namespace weft::dtensor::fused {

/// Returns the next multiple of `tile`.
inline int64_t fill_up(int64_t length, int64_t tile) {
  return (length + tile - 1) / tile * tile;
}

/// The inputs of an attention, [B, H, L, D], with a key and a value for each
/// query head. `grad` is that of the output, and undefined in forward.
struct AttentionInputs {
  at::Tensor query, key, value, grad;
  bool is_causal;
  /// The factor of the query-key products; above 0.
  float scale;

  int64_t queries() const { return query.size(2); }
  /// The keys that at least one query sees: the first ones.
  int64_t seen_keys() const {
    return is_causal ? std::min(queries(), key.size(2)) : key.size(2);
  }
};

/// Some heads of one sample, or all heads of several samples.
struct HeadRange {
  int64_t sample;
  int64_t samples;
  int64_t head;
  int64_t heads;

  int64_t count() const { return samples * heads; }
  at::Tensor of(const at::Tensor& tensor_BHLD) const {
    return tensor_BHLD.narrow(0, sample, samples).narrow(1, head, heads);
  }
  /// Returns the first `positions` as contiguous [count, length, D] of `dtype`,
  /// with zeros behind them.
  at::Tensor read(
      const at::Tensor& tensor_BHLD,
      c10::ScalarType dtype,
      int64_t positions,
      int64_t length) const {
    const auto part = of(tensor_BHLD).narrow(2, 0, positions);
    if (positions == length) {
      constexpr auto kFormat = at::MemoryFormat::Contiguous;
      return part.to(dtype, /*non_blocking=*/false, /*copy=*/false, kFormat)
          .contiguous()
          .flatten(0, 1);
    }
    const auto result = at::zeros(
        {samples, heads, length, part.size(3)}, part.options().dtype(dtype));
    result.narrow(2, 0, positions).copy_(part);
    return result.flatten(0, 1);
  }
  /// Writes the first `positions` of `from_HLD`, and zeros behind them.
  void write(
      const at::Tensor& from_HLD,
      int64_t positions,
      const at::Tensor& tensor_BHLD) const {
    const auto to = of(tensor_BHLD);
    to.narrow(2, 0, positions)
        .copy_(from_HLD.narrow(1, 0, positions).unflatten(0, {samples, heads}));
    if (positions < to.size(2)) {
      to.narrow(2, positions, to.size(2) - positions).zero_();
    }
  }
};

/// Queries of a range of heads, with the keys that at least one of them sees.
struct QueryBlock {
  int64_t first;
  int64_t count;
  int64_t keys;
  /// The first block of its range that is visited. It sees all keys that any
  /// query does, so what later ones compute of keys is added to its results.
  bool is_first_visited;
};

/// Divides an attention into blocks.
class Blocks {
 public:
  static constexpr int64_t kQueries = 128;

  /// A range has as many heads as `most_scores` allow for a block, with lengths
  /// filled up to multiples of `tile`.
  Blocks(const AttentionInputs& inputs, int64_t most_scores, int64_t tile)
      : samples_(inputs.query.size(0)),
        heads_(inputs.query.size(1)),
        queries_(inputs.queries()),
        keys_(inputs.seen_keys()),
        is_causal_(inputs.is_causal),
        tile_(tile),
        block_(std::min(kQueries, queries_)),
        range_(std::max<int64_t>(most_scores / scores_of_head(), 1)) {}

  /// Returns memory for the scores of any block.
  at::Tensor make_scratch(c10::ScalarType dtype) const {
    return at::empty(
        {std::min(range_, samples_ * heads_) * scores_of_head()}, dtype);
  }
  /// Returns the part [H, Q, K] of it that is for `block` of `range`, with
  /// lengths filled up.
  at::Tensor scores_in(
      const at::Tensor& scratch,
      const HeadRange& range,
      const QueryBlock& block) const {
    const int64_t rows = fill_up(block.count, tile_);
    const int64_t columns = fill_up(block.keys, tile_);
    return scratch.narrow(0, 0, range.count() * rows * columns)
        .view({range.count(), rows, columns});
  }
  template <class Visit>
  void for_each_range(const Visit& visit) const {
    const int64_t samples = std::max<int64_t>(range_ / heads_, 1);
    for (int64_t sample = 0; sample < samples_; sample += samples) {
      for (int64_t head = 0; head < heads_; head += range_) {
        visit(HeadRange{
            sample,
            std::min(samples, samples_ - sample),
            head,
            std::min(range_, heads_ - head)});
      }
    }
  }
  /// The last queries first: they see all keys that any query does.
  template <class Visit>
  void for_each_block(const Visit& visit) const {
    for (int64_t first = (queries_ - 1) / block_ * block_; first >= 0;
         first -= block_) {
      const int64_t end = std::min(first + block_, queries_);
      visit(QueryBlock{
          first,
          end - first,
          is_causal_ ? std::min(keys_, end) : keys_,
          end == queries_});
    }
  }

 private:
  int64_t scores_of_head() const {
    return fill_up(block_, tile_) * fill_up(keys_, tile_);
  }

  int64_t samples_, heads_, queries_, keys_;
  bool is_causal_;
  int64_t tile_, block_, range_;
};

} // namespace weft::dtensor::fused
