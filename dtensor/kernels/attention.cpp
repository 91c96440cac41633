// Attention: each head of each sample is alone, so batch and heads may be cut.

#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"

namespace weft::dtensor::kernels {
namespace {

// [.., H, T, D]: a dim before T may be cut where q, k and v have it cut into
// parts that belong together.
Placement attention_placement(
    const Placement& query,
    const at::Tensor& q,
    const at::Tensor& k,
    int64_t all_shards) {
  if (!query.is_shard() || query.tensor_dim() >= q.dim() - 2) {
    return Replicate();
  }
  const int64_t dim = query.tensor_dim();
  const bool same = q.size(dim) == k.size(dim);
  const bool aligned =
      q.size(dim) % all_shards == 0 && k.size(dim) % all_shards == 0;
  return same || aligned ? query : Replicate();
}

std::optional<at::Tensor> enter_mask(
    const std::optional<at::Tensor>& mask,
    const at::Tensor& q,
    const DTensorSpec& spec) {
  if (!mask || !mask->defined()) {
    return std::nullopt;
  }
  const auto placed = place(*mask, spec);
  Placements placements;
  Placements grad;
  for (const auto& placement : spec.placements()) {
    const int64_t own = placement.tensor_dim() - (q.dim() - placed.dim());
    const bool cut = placement.is_shard() && own >= 0 && placed.size(own) != 1;
    placements.push_back(cut ? Shard(own) : Replicate());
    grad.push_back(
        placement.is_shard() && !cut ? Partial() : placements.back());
  }
  return enter_local(placed, spec.with(placements), grad, "attention mask");
}

// The CPU kernel writes [B, T, H, D] and shows it as [B, H, T, D]; strides
// follow from sizes alone, so that every rank sees the same.
std::vector<int64_t> output_strides(c10::IntArrayRef sizes) {
  if (sizes.size() != 4) {
    return row_major_strides(sizes);
  }
  return {sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
}

} // namespace

at::Tensor scaled_dot_product_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const auto common = common_spec({&query, &key, &value});
  TORCH_CHECK_NOT_IMPLEMENTED(
      dropout_p == 0.0 || common.mesh().size() == 1,
      "[scaled_dot_product_attention] dropout_p == 0: ",
      dropout_p,
      " vs 0. Dropout inside attention is not available on a mesh of several "
      "ranks.");
  check_operands(
      "scaled_dot_product_attention", common, {query, key, value, attn_mask});
  const auto q = place(query, common);
  const auto k = place(key, common);
  const auto v = place(value, common);
  Placements placements;
  for (int64_t i = 0; i < common.mesh_ndim(); ++i) {
    placements.push_back(attention_placement(
        spec_of(q).placement(i), q, k, common.mesh().size()));
  }
  const auto spec = common.with(placements);
  const char* name = "attention";
  const auto mask = enter_mask(attn_mask, q, spec);
  auto local = at::scaled_dot_product_attention(
      enter_local(q, spec, placements, name),
      enter_local(k, spec, placements, name),
      enter_local(v, spec, placements, name),
      mask,
      dropout_p,
      is_causal,
      scale,
      enable_gqa);
  if (mask && mask->requires_grad() && local.numel() == 0) {
    // An empty part uses no mask, but its gradient is reduced by all ranks.
    local = local + mask->sum();
  }
  auto sizes = q.sizes().vec();
  sizes.back() = v.size(-1);
  return leave_local(local, spec, sizes, output_strides(sizes), name);
}

} // namespace weft::dtensor::kernels
