#pragma once

#include <cstdint>

#include <torch/torch.h>

namespace weft::models {

/// Returns a Linear whose weight is drawn from a normal distribution and whose
/// bias is 0.
inline torch::nn::Linear
linear_with_bias(int64_t in, int64_t out, double std = 0.02) {
  torch::nn::Linear layer(in, out);
  torch::nn::init::normal_(layer->weight, 0.0, std);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

/// Splits the heads of `x`.
/// Shapes: [B, T, D] to [B, heads, T, D / heads].
inline at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads})
      .transpose(1, 2);
}

/// Merges heads: the inverse of split_heads().
inline at::Tensor merge_heads(const at::Tensor& x) {
  return x.transpose(1, 2).reshape(
      {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

/// Computes attention with `heads` independent heads.
/// Shapes: q, k, v [B, T, D] to [B, T, D].
inline at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    int64_t heads,
    double dropout_p,
    bool is_causal) {
  return merge_heads(at::scaled_dot_product_attention(
      split_heads(q, heads),
      split_heads(k, heads),
      split_heads(v, heads),
      /*attn_mask=*/{},
      dropout_p,
      is_causal));
}

} // namespace weft::models
