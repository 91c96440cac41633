// Attention. The heads of a sample are independent, so batch and heads may be
// sharded. The sequence of the queries may be sharded, too; keys and values are
// then gathered.

#include <algorithm>
#include <limits>

#include <torch/torch.h>

#include "dtensor/kernels/grouped_heads.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/random_ops.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/ignore_warnings.h"

namespace weft::dtensor::kernels {
namespace {

constexpr const char* kAttentionName = "attention";

// Returns the dim of `tensor` that corresponds to dim `dim` of a tensor with
// `ndim` dims, counted from the last one. Negative if there is none.
int64_t aligned_dim(const at::Tensor& tensor, int64_t dim, int64_t ndim) {
  return dim - (ndim - tensor.dim());
}

// Returns true if each rank can have the part of a key or value that its shard
// of the query needs: `other` has the same size along the sharded dim, or
// broadcasts there, or has groups of heads.
bool is_sharded_with(
    const at::Tensor& query,
    const at::Tensor& other,
    const Placement& cut) {
  const int64_t own = aligned_dim(other, cut.tensor_dim(), query.dim());
  const int64_t size = query.size(cut.tensor_dim());
  if (own < 0 || other.size(own) == 1 || other.size(own) == size) {
    return true;
  }
  return cut.tensor_dim() == query.dim() - 3 && has_groups(query, other);
}

// Returns the placement of the query [.., H, T, D], and of the output, on a
// mesh dim on which the caller has it as `cut`.
Placement cut_of_query(
    const Placement& cut,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) {
  if (!cut.is_shard() || cut.tensor_dim() >= q.dim() - 1) {
    return Replicate();
  }
  const bool is_sequence = cut.tensor_dim() == q.dim() - 2;
  const bool fits =
      is_sequence || (is_sharded_with(q, k, cut) && is_sharded_with(q, v, cut));
  return fits ? cut : Replicate();
}

struct Entering {
  Placements placements;
  Placements grad;
};

// Returns the placements of a key, value or mask, and of its gradient, for a
// query with `spec`. `has_query_sequence` is true for a mask. With
// `whole_heads` every rank gets all heads.
Entering beside_query(
    const DTensorSpec& spec,
    const at::Tensor& q,
    const at::Tensor& other,
    bool has_query_sequence,
    bool whole_heads = false) {
  Entering entering;
  for (const auto& cut : spec.placements()) {
    const int64_t own =
        cut.is_shard() ? aligned_dim(other, cut.tensor_dim(), q.dim()) : -1;
    const bool is_sequence = cut.is_shard() && cut.tensor_dim() == q.dim() - 2;
    const bool is_whole = whole_heads && cut.is_shard(q.dim() - 3);
    const bool is_cut = own >= 0 && !is_whole &&
                        (!is_sequence || has_query_sequence) &&
                        (other.size(own) != 1 || q.size(cut.tensor_dim()) == 1);
    entering.placements.push_back(
        is_cut ? cut.with_tensor_dim(own) : Replicate());
    entering.grad.push_back(
        cut.is_shard() && !is_cut ? Partial() : entering.placements.back());
  }
  return entering;
}

// The fused CPU kernel writes [B, T, H, D] and returns it as [B, H, T, D]. The
// composed op, which dropout needs, writes [B, H, T, D]. The strides are
// computed from the sizes alone, so that they are equal on all ranks.
std::vector<int64_t> output_strides(c10::IntArrayRef sizes, bool by_parts) {
  if (sizes.size() != 4 || by_parts) {
    return row_major_strides(sizes);
  }
  return {sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
}

at::Tensor
causal_mask(const DTensorSpec& spec, const at::Tensor& q, const at::Tensor& k) {
  std::vector<at::Tensor> rows{at::empty({0}, at::kLong)};
  const auto ranges = local_ranges(spec, q.sizes());
  for (const auto& range : ranges[q.dim() - 2]) {
    rows.push_back(
        at::arange(range.begin, range.begin + range.length, at::kLong));
  }
  const auto columns = at::arange(k.size(-2), at::kLong);
  return at::cat(rows).unsqueeze(1).ge(columns).to(q.device());
}

// Draws this rank's part of the mask [.., H, T, S] of the attention weights
// that dropout keeps.
at::Tensor dropout_mask(
    const DTensorSpec& spec,
    const at::Tensor& q,
    const at::Tensor& k,
    double dropout_p) {
  auto sizes = q.sizes().vec();
  sizes.back() = k.size(-2);
  const auto mask = draw_dtensor(
      spec,
      sizes,
      row_major_strides(sizes),
      q.options().dtype(at::kBool),
      {Draw::Kind::kBernoulli, 1 - dropout_p});
  return dtensor_impl(mask)->local();
}

at::Tensor meta_mask(const at::Tensor& q_local, const at::Tensor& k) {
  auto sizes = q_local.sizes().vec();
  sizes.back() = k.size(-2);
  return at::empty(sizes, q_local.options().dtype(at::kBool));
}

// Converts a mask of bools for _scaled_dot_product_attention_math, as libtorch
// does before it calls that op.
std::optional<at::Tensor> additive(
    const std::optional<at::Tensor>& mask,
    at::ScalarType dtype) {
  if (!mask || mask->scalar_type() != at::kBool) {
    return mask;
  }
  return at::zeros(mask->sizes(), mask->options().dtype(dtype))
      .masked_fill_(
          mask->logical_not(), -std::numeric_limits<double>::infinity());
}

// Returns zeros for a rank without queries. In the graph they depend on all
// inputs, so that this rank takes part in the reductions of their gradients.
at::Tensor nothing(
    const std::vector<at::Tensor>& inputs,
    c10::IntArrayRef sizes) {
  auto result = at::zeros(sizes, inputs[0].options());
  for (const auto& input : inputs) {
    if (input.requires_grad()) {
      result = result + input.sum() * 0;
    }
  }
  return result;
}

struct Attention {
  DTensorSpec spec;
  at::Tensor q, k, v;
  at::Tensor q_local, k_local, v_local;
  std::optional<at::Tensor> mask;
  bool is_causal;
};

void enter_mask(Attention& attention, const std::optional<at::Tensor>& mask) {
  const auto& spec = attention.spec;
  if (mask && mask->defined()) {
    const auto placed = place(*mask, spec);
    const auto entering = beside_query(spec, attention.q, placed, true);
    attention.mask = to_local_impl(
        placed, spec.with(entering.placements), entering.grad, kAttentionName);
    return;
  }
  const bool cuts_sequence = std::ranges::any_of(
      spec.placements(),
      [&](const auto& cut) { return cut.is_shard(attention.q.dim() - 2); });
  if (attention.is_causal && cuts_sequence) {
    attention.mask = causal_mask(spec, attention.q, attention.k);
    attention.is_causal = false;
  }
}

Attention enter_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    bool is_causal) {
  const auto common = common_spec({&query, &key, &value});
  check_operands(
      "scaled_dot_product_attention", common, {query, key, value, mask});
  Attention result;
  result.is_causal = is_causal;
  result.q = place(query, common);
  result.k = place(key, common);
  result.v = place(value, common);
  Placements placements;
  for (const auto& placement : spec_of(result.q).placements()) {
    placements.push_back(cut_of_query(placement, result.q, result.k, result.v));
  }
  result.spec = common.with(placements);
  result.q_local =
      to_local_impl(result.q, result.spec, placements, kAttentionName);
  const auto enter = [&](const at::Tensor& tensor) {
    const bool whole_heads = has_groups(result.q, tensor) &&
                             !groups_lie_alike(result.spec, result.q, tensor);
    const auto entering =
        beside_query(result.spec, result.q, tensor, false, whole_heads);
    const auto local = to_local_impl(
        tensor,
        common.with(entering.placements),
        entering.grad,
        kAttentionName);
    return whole_heads ? heads_for(result.spec, result.q, local) : local;
  };
  result.k_local = enter(result.k);
  result.v_local = enter(result.v);
  enter_mask(result, mask);
  return result;
}

at::Tensor attend(
    const Attention& attention,
    double dropout_p,
    std::optional<double> scale,
    bool enable_gqa) {
  const auto& [spec, q, k, v, q_local, k_local, v_local, mask, causal] =
      attention;
  // If the head counts of this rank are equal, no heads need to be repeated,
  // whatever enable_gqa is.
  const bool has_local_groups =
      enable_gqa && (head_count(k_local) != head_count(q_local) ||
                     head_count(v_local) != head_count(q_local));
  std::optional<at::Tensor> kept;
  // Tensors without a mesh use libtorch's own random numbers.
  const bool placed = spec.mesh_ndim() != 0;
  if (dropout_p > 0 && placed) {
    // Every rank draws, also one without queries, so that the random sequences
    // of the ranks stay equal.
    kept = q_local.is_meta() ? meta_mask(q_local, k)
                             : dropout_mask(spec, q, k, dropout_p);
  }
  if (q_local.numel() == 0) {
    auto sizes = q_local.sizes().vec();
    sizes.back() = v_local.size(-1);
    std::vector<at::Tensor> inputs{q_local, k_local, v_local};
    if (mask) {
      inputs.push_back(*mask);
    }
    return nothing(inputs, sizes);
  }
  if (kept) {
    // Suppresses the warning of libtorch that a given dropout mask is for
    // tests.
    return mesh::without_warnings(
        [&, &q = q_local, &k = k_local, &v = v_local, is_causal = causal] {
          return std::get<0>(at::_scaled_dot_product_attention_math(
              q,
              k,
              v,
              additive(mask, q.scalar_type()),
              dropout_p,
              is_causal,
              kept,
              scale,
              has_local_groups));
        });
  }
  if (q_local.is_meta() && q_local.dim() == 4) {
    // For meta tensors libtorch would select the composed op, although it
    // selects a fused op on the devices.
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        q_local, k_local, v_local, 0.0, causal, mask, scale));
  }
  return at::scaled_dot_product_attention(
      q_local,
      k_local,
      v_local,
      mask,
      placed ? 0.0 : dropout_p,
      causal,
      scale,
      has_local_groups);
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
  TORCH_CHECK_VALUE(
      dropout_p >= 0 && dropout_p <= 1,
      "[scaled_dot_product_attention] 0 <= dropout_p <= 1: ",
      dropout_p,
      ".");
  TORCH_CHECK_VALUE(
      !is_causal || !attn_mask || !attn_mask->defined(),
      "[scaled_dot_product_attention] is_causal and attn_mask cannot be "
      "combined. Include the causal part in the mask.");
  TORCH_CHECK_VALUE(
      enable_gqa || !(has_groups(query, key) || has_groups(query, value)),
      "[scaled_dot_product_attention] heads of query == heads of key and value "
      "(",
      head_count(query),
      " vs ",
      head_count(key),
      " and ",
      head_count(value),
      "), unless enable_gqa says that they are groups.");
  const auto attention =
      enter_attention(query, key, value, attn_mask, is_causal);
  const auto local = attend(attention, dropout_p, scale, enable_gqa);
  auto sizes = attention.q.sizes().vec();
  sizes.back() = attention.v.size(-1);
  return from_local_impl(
      local,
      attention.spec,
      sizes,
      output_strides(sizes, dropout_p > 0),
      kAttentionName);
}

} // namespace weft::dtensor::kernels
