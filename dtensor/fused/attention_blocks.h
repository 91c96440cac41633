#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

// Shape suffixes: B samples, H heads, L queries or keys, Q queries, K keys, D
// of a head.

namespace weft::dtensor::fused {

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
  /// Returns contiguous [count, length, D] of `dtype`, with zeros behind the
  /// tensor's own length.
  at::Tensor read(
      const at::Tensor& tensor_BHLD,
      c10::ScalarType dtype,
      int64_t length) const {
    const auto part = of(tensor_BHLD);
    if (part.size(2) == length) {
      constexpr auto kFormat = at::MemoryFormat::Contiguous;
      return part.to(dtype, /*non_blocking=*/false, /*copy=*/false, kFormat)
          .contiguous()
          .flatten(0, 1);
    }
    const auto result = at::zeros(
        {samples, heads, length, part.size(3)}, part.options().dtype(dtype));
    result.narrow(2, 0, part.size(2)).copy_(part);
    return result.flatten(0, 1);
  }
  /// Writes the first part of `from_HLD`, as long as the tensor.
  void write(const at::Tensor& from_HLD, const at::Tensor& tensor_BHLD) const {
    of(tensor_BHLD)
        .copy_(from_HLD.narrow(1, 0, tensor_BHLD.size(2))
                   .unflatten(0, {samples, heads}));
  }
};

/// Queries of a range of heads, with the keys that at least one of them sees.
struct QueryBlock {
  int64_t first;
  int64_t count;
  int64_t keys;
};

/// Divides an attention into blocks.
class Blocks {
 public:
  static constexpr int64_t kQueries = 128;

  /// `scratch`: the elements of the scores of one block.
  Blocks(const at::Tensor& query, int64_t keys, bool is_causal, int64_t scratch)
      : samples_(query.size(0)),
        heads_(query.size(1)),
        queries_(query.size(2)),
        keys_(keys),
        is_causal_(is_causal),
        block_(std::min(kQueries, queries_)),
        range_(std::max<int64_t>(scratch / (block_ * keys), 1)) {}

  /// The largest number of heads in a range.
  int64_t most_heads() const { return std::min(range_, samples_ * heads_); }
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
          first, end - first, is_causal_ ? std::min(keys_, end) : keys_});
    }
  }

 private:
  int64_t samples_, heads_, queries_, keys_;
  bool is_causal_;
  int64_t block_, range_;
};

} // namespace weft::dtensor::fused
