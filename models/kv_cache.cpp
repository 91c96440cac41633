// Shape suffixes are explained in llama.h.

#include "models/kv_cache.h"

#include <algorithm>
#include <optional>

#include <torch/torch.h>

namespace weft::models {
namespace {

// Returns a copy of `buffer` that has room for `room` tokens in total.
at::Tensor with_room(const at::Tensor& buffer, int64_t room) {
  return at::constant_pad_nd(buffer, {0, 0, 0, room - buffer.size(2)});
}

} // namespace

void LayerCache::append(const at::Tensor& k_BKTd, const at::Tensor& v_BKTd) {
  const int64_t T = k_BKTd.size(2);
  const int64_t needed = length_ + T;
  if (!k_.defined()) {
    const int64_t room = std::max(needed, expected_);
    k_ = with_room(k_BKTd, room);
    v_ = with_room(v_BKTd, room);
  } else {
    if (needed > k_.size(2)) {
      const int64_t room = std::max(needed, k_.size(2) + k_.size(2) / 2);
      k_ = with_room(k_, room);
      v_ = with_room(v_, room);
    }
    k_.narrow(2, length_, T).copy_(k_BKTd);
    v_.narrow(2, length_, T).copy_(v_BKTd);
  }
  length_ = needed;
}

void LayerCache::repeat_rows(int64_t rows) {
  k_ = k_.repeat({rows, 1, 1, 1});
  v_ = v_.repeat({rows, 1, 1, 1});
}

LayerCache& KvCache::layer(size_t index) {
  while (layers_.size() <= index) {
    layers_.emplace_back(expected_);
  }
  return layers_[index];
}

int64_t KvCache::length() const {
  return layers_.empty() ? 0 : layers_.back().length();
}

void KvCache::repeat_rows(int64_t rows) {
  for (auto& layer : layers_) {
    layer.repeat_rows(rows);
  }
  if (tokens_.defined()) {
    tokens_ = tokens_.repeat({rows, 1});
  }
}

at::Tensor KvCache::append_tokens(const at::Tensor& tokens) {
  tokens_ = tokens_.defined() ? at::cat({tokens_, tokens}, 1) : tokens;
  return tokens_;
}

at::Tensor causal_attention(
    const at::Tensor& q_BHTd,
    const at::Tensor& k_BKTd,
    const at::Tensor& v_BKTd,
    double dropout_p,
    LayerCache* cache) {
  const int64_t T = q_BHTd.size(2);
  const int64_t seen = cache == nullptr ? 0 : cache->length();
  if (cache != nullptr) {
    cache->append(k_BKTd, v_BKTd);
  }
  std::optional<at::Tensor> mask;
  if (seen > 0 && T > 1) {
    // Each new token attends to all tokens up to itself.
    mask = q_BHTd.new_ones({T, seen + T}, at::kBool).tril(seen);
  }
  return at::scaled_dot_product_attention(
      q_BHTd,
      seen == 0 ? k_BKTd : cache->k_BKTd(),
      seen == 0 ? v_BKTd : cache->v_BKTd(),
      mask,
      dropout_p,
      /*is_causal=*/seen == 0,
      /*scale=*/std::nullopt,
      /*enable_gqa=*/k_BKTd.size(1) != q_BHTd.size(1));
}

} // namespace weft::models
