// Shape suffixes: N tokens of this rank, k experts a token, S their pairs,
// E experts, D dim, F ffn dim.

#include "dtensor/fused/experts.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "dtensor/fused/expert_exchange.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/fused/grouped_mm.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// The pairs of a token and one of its experts, ordered by expert.
struct ExpertPairs {
  at::Tensor token_S;
  at::Tensor weight_S;
  GroupCounts counts;

  /// Returns the pairs of `experts` experts starting at `first`.
  ExpertPairs part(int64_t first, int64_t experts) const {
    const auto begin = counts.begin() + first;
    const int64_t row = std::accumulate(counts.begin(), begin, int64_t{0});
    GroupCounts own(begin, begin + experts);
    const int64_t rows = sum_of(own);
    return {
        token_S.narrow(0, row, rows),
        weight_S.narrow(0, row, rows),
        std::move(own)};
  }
};

// Divides the rows evenly, for meta tensors. See Note [Experts].
GroupCounts even_counts(int64_t rows, int64_t experts) {
  GroupCounts counts(experts, rows / experts);
  for (int64_t expert = 0; expert < rows % experts; ++expert) {
    ++counts[expert];
  }
  return counts;
}

GroupCounts count_rows(const at::Tensor& index_S, int64_t experts) {
  if (index_S.is_meta()) {
    return even_counts(index_S.numel(), experts);
  }
  if (index_S.numel() == 0) {
    return GroupCounts(experts, 0);
  }
  // The host reads the counts, because they are the sizes of matmuls and
  // messages.
  const auto counts = at::bincount(index_S, {}, experts).cpu();
  TORCH_CHECK_VALUE(
      counts.numel() == experts,
      "[experts] expert_index: got ",
      counts.numel() - 1,
      ", expected less than the number of experts, ",
      experts,
      ".");
  const auto* first = counts.const_data_ptr<int64_t>();
  return {first, first + experts};
}

ExpertPairs sort_pairs(
    const at::Tensor& index_Nk,
    const at::Tensor& weight_Nk,
    int64_t experts) {
  const auto index_S = index_Nk.reshape(-1);
  const auto order = at::argsort(index_S, /*stable=*/true);
  return {
      at::div(order, index_Nk.size(1), "floor"),
      weight_Nk.reshape(-1).index_select(0, order),
      count_rows(index_S, experts)};
}

at::Tensor run_groups(
    const at::Tensor& rows_SD,
    const at::Tensor& gate_up_proj,
    const at::Tensor& down_proj,
    const GroupCounts& counts) {
  const auto both =
      grouped_mm(rows_SD, gate_up_proj.transpose(1, 2), counts).chunk(2, -1);
  return grouped_mm(
      swiglu(both[0], both[1]), down_proj.transpose(1, 2), counts);
}

at::Tensor add_up(const at::Tensor& y_SD, const ExpertPairs& pairs, int64_t N) {
  const auto weighted = y_SD * pairs.weight_S.unsqueeze(1);
  return at::zeros({N, y_SD.size(1)}, y_SD.options())
      .index_add(0, pairs.token_S, weighted.to(y_SD.scalar_type()));
}

at::Tensor run_here(
    const at::Tensor& x_ND,
    const ExpertPairs& pairs,
    const at::Tensor& gate_up_proj,
    const at::Tensor& down_proj) {
  const auto rows_SD = x_ND.index_select(0, pairs.token_S);
  const auto y_SD = run_groups(rows_SD, gate_up_proj, down_proj, pairs.counts);
  return add_up(y_SD, pairs, x_ND.size(0));
}

// ---- to other ranks ---------------------------------------------------------

at::Tensor run_elsewhere(
    const at::Tensor& x_ND,
    const ExpertPairs& pairs,
    const at::Tensor& gate_up_proj,
    const at::Tensor& down_proj,
    const std::vector<int64_t>& experts_of,
    mesh::Communicator& group,
    const std::string& name) {
  const auto exchange =
      plan_exchange(pairs.counts, experts_of, group, x_ND.device(), name);
  const auto rows = exchange_rows(
      x_ND.index_select(0, pairs.token_S), exchange.rows, group, name);
  const auto y = run_groups(
      rows.index_select(0, exchange.grouped),
      gate_up_proj,
      down_proj,
      exchange.counts);
  const auto y_SD = exchange_rows(
      y.index_select(0, exchange.ungrouped),
      exchange.rows.reversed(),
      group,
      name);
  return add_up(y_SD, pairs, x_ND.size(0));
}

// ---- placements -------------------------------------------------------------

struct ExpertPlan {
  Placements tokens, tokens_grad;
  Placements weights, weights_grad;
  Placements output;
  /// The mesh dim that shards the experts. Empty if no mesh dim of more than
  /// one rank does.
  std::optional<int64_t> expert_dim;
  /// True if `expert_dim` shards the tokens, too.
  bool exchanges = false;
};

ExpertPlan plan_experts(
    const DTensorSpec& weights,
    const DTensorSpec& tokens,
    int64_t token_dims) {
  ExpertPlan plan;
  const auto push = [&](Placement x, Placement gx, Placement w, Placement gw) {
    plan.tokens.push_back(x);
    plan.tokens_grad.push_back(gx);
    plan.weights.push_back(w);
    plan.weights_grad.push_back(gw);
    plan.output.push_back(gx);
  };
  for (int64_t i = 0; i < weights.mesh_ndim(); ++i) {
    const auto& w = weights.placement(i);
    const auto& x = tokens.placement(i);
    const bool is_cut = x.is_shard() && x.tensor_dim() < token_dims;
    const bool has_experts = w.is_shard() && weights.mesh().size(i) > 1;
    if (has_experts) {
      plan.expert_dim = i;
      plan.exchanges = is_cut;
    }
    if (is_cut) {
      push(x, x, w, w.is_shard() ? w : Partial());
    } else if (has_experts) {
      push(Replicate(), Partial(), w, w);
    } else {
      push(Replicate(), Replicate(), w, w);
    }
  }
  return plan;
}

void check_weight_placements(
    const at::Tensor& gate_up,
    const at::Tensor& down) {
  const auto& spec = spec_of(gate_up);
  int64_t cuts = 0;
  bool well = spec == spec_of(down);
  for (const auto& placement : spec.placements()) {
    cuts += placement.is_shard() ? 1 : 0;
    well = well && (placement.is_replicate() ||
                    (placement.is_shard(0) && !placement.is_strided()));
  }
  WEFT_CHECK(
      well && cuts <= 1,
      "experts",
      mesh::ErrorContext{spec.mesh().describe_rank()},
      "gate_up_proj and down_proj must have the same placements, Shard(0) over "
      "at most one mesh dim and Replicate over the others, got ",
      describe(gate_up),
      " vs ",
      describe(down),
      ". Shard the experts, not their features: a Shard of the features of "
      "gate_up_proj would give a rank the gate and the up rows of different "
      "features.");
}

std::vector<int64_t> experts_by_rank(
    const at::Tensor& gate_up,
    int64_t expert_dim) {
  const auto& spec = spec_of(gate_up);
  std::vector<int64_t> coordinate(spec.mesh_ndim(), 0);
  std::vector<int64_t> experts;
  for (int64_t rank = 0; rank < spec.mesh().size(expert_dim); ++rank) {
    coordinate[expert_dim] = rank;
    experts.push_back(local_sizes_at(spec, gate_up.sizes(), coordinate)[0]);
  }
  return experts;
}

// ---- plain and DTensors -----------------------------------------------------

void check_experts_shapes(
    const at::Tensor& x,
    const at::Tensor& index,
    const at::Tensor& weight,
    const at::Tensor& gate_up,
    const at::Tensor& down) {
  const bool fits = x.dim() >= 2 && index.dim() == x.dim() &&
                    index.scalar_type() == at::kLong &&
                    index.sizes().slice(0, index.dim() - 1) ==
                        x.sizes().slice(0, x.dim() - 1) &&
                    weight.sizes() == index.sizes() && gate_up.dim() == 3 &&
                    down.dim() == 3 && gate_up.size(0) == down.size(0) &&
                    gate_up.size(0) > 0 && gate_up.size(2) == x.size(-1) &&
                    down.size(1) == x.size(-1) &&
                    gate_up.size(1) == 2 * down.size(2);
  TORCH_CHECK_VALUE(
      fits,
      "[experts] x [.., N, D], expert_index (int64) and expert_weight [.., N, "
      "k] == gate_up_proj [E, 2 F, D], down_proj [E, D, F] in sizes: x ",
      x.sizes(),
      ", expert_index ",
      index.sizes(),
      " ",
      index.scalar_type(),
      ", expert_weight ",
      weight.sizes(),
      " vs gate_up_proj ",
      gate_up.sizes(),
      ", down_proj ",
      down.sizes(),
      ".");
}

// Casts a tensor as autocast casts the operands of linear().
at::Tensor cast_to_compute(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  return at::autocast::is_autocast_available(device) &&
                 at::autocast::is_autocast_enabled(device)
             ? at::autocast::cached_cast(
                   at::autocast::get_autocast_dtype(device), tensor, device)
             : tensor;
}

struct ExpertOperands {
  at::Tensor x_ND;
  ExpertPairs pairs;
  at::Tensor gate_up_proj;
  at::Tensor down_proj;
};

ExpertOperands make_operands(
    const at::Tensor& x,
    const at::Tensor& index,
    const at::Tensor& weight,
    const at::Tensor& gate_up,
    const at::Tensor& down,
    int64_t experts) {
  const auto rows = [](const at::Tensor& tensor) {
    const int64_t columns = tensor.size(-1);
    const int64_t count =
        c10::multiply_integers(tensor.sizes().slice(0, tensor.dim() - 1));
    return tensor.reshape({count, columns});
  };
  return {
      cast_to_compute(rows(x)),
      sort_pairs(rows(index), rows(weight), experts),
      cast_to_compute(gate_up),
      cast_to_compute(down)};
}

at::Tensor run_local(
    const ExpertOperands& in,
    const ExpertPlan& plan,
    const at::Tensor& gate_up,
    const std::string& name) {
  if (!plan.expert_dim) {
    return run_here(in.x_ND, in.pairs, in.gate_up_proj, in.down_proj);
  }
  const auto& mesh = spec_of(gate_up).mesh();
  if (plan.exchanges) {
    return run_elsewhere(
        in.x_ND,
        in.pairs,
        in.gate_up_proj,
        in.down_proj,
        experts_by_rank(gate_up, *plan.expert_dim),
        mesh.group(*plan.expert_dim),
        name);
  }
  const auto box = local_box(spec_of(gate_up), gate_up.sizes());
  const int64_t own = box.sizes[0];
  return run_here(
      in.x_ND,
      in.pairs.part(own == 0 ? 0 : box.offset[0], own),
      in.gate_up_proj,
      in.down_proj);
}

at::Tensor experts_of_dtensors(
    const at::Tensor& x,
    const at::Tensor& index,
    const at::Tensor& weight,
    const at::Tensor& gate_up,
    const at::Tensor& down) {
  const auto spec =
      kernels::common_spec({&gate_up, &down, &x, &index, &weight});
  kernels::check_operands("experts", spec, {gate_up, down, x, index, weight});
  const auto name = kernels::label("experts", gate_up);
  const auto x_placed = kernels::place(x, spec);
  const auto gate_up_placed = kernels::place(gate_up, spec);
  const auto down_placed = kernels::place(down, spec);
  check_weight_placements(gate_up_placed, down_placed);
  const auto plan =
      plan_experts(spec_of(gate_up_placed), spec_of(x_placed), x.dim() - 1);
  const auto enter_tokens = [&](const at::Tensor& tensor) {
    return to_local_impl(
        tensor, spec.with(plan.tokens), plan.tokens_grad, name);
  };
  const auto enter_weights = [&](const at::Tensor& tensor) {
    return to_local_impl(
        tensor, spec.with(plan.weights), plan.weights_grad, name);
  };
  const auto x_local = enter_tokens(x_placed);
  const auto index_local = enter_tokens(kernels::place(index, spec));
  const auto weight_local = enter_tokens(kernels::place(weight, spec));
  const auto gate_up_local = enter_weights(gate_up_placed);
  const auto down_local = enter_weights(down_placed);
  const auto operands = make_operands(
      x_local,
      index_local,
      weight_local,
      gate_up_local,
      down_local,
      gate_up.size(0));
  auto output = from_local_impl(
      run_local(operands, plan, gate_up_placed, name).view(x_local.sizes()),
      spec.with(plan.output),
      x.sizes(),
      row_major_strides(x.sizes()),
      name);
  use_in_backward(output, {&gate_up, &down});
  return output;
}

at::Tensor count_local(const at::Tensor& index, int64_t experts) {
  auto sizes = index.sizes().slice(0, index.dim() - 2).vec();
  sizes.push_back(experts);
  const auto flat = index.flatten(-2);
  return at::zeros(sizes, index.options())
      .scatter_add(-1, flat, at::ones_like(flat));
}

} // namespace

at::Tensor experts(
    const at::Tensor& x,
    const at::Tensor& expert_index,
    const at::Tensor& expert_weight,
    const at::Tensor& gate_up_proj,
    const at::Tensor& down_proj) {
  check_experts_shapes(x, expert_index, expert_weight, gate_up_proj, down_proj);
  for (const auto* tensor :
       {&x, &expert_index, &expert_weight, &gate_up_proj, &down_proj}) {
    if (is_dtensor(*tensor)) {
      return experts_of_dtensors(
          x, expert_index, expert_weight, gate_up_proj, down_proj);
    }
  }
  const auto in = make_operands(
      x,
      expert_index,
      expert_weight,
      gate_up_proj,
      down_proj,
      gate_up_proj.size(0));
  return run_here(in.x_ND, in.pairs, in.gate_up_proj, in.down_proj)
      .view(x.sizes());
}

at::Tensor expert_counts(const at::Tensor& expert_index, int64_t num_experts) {
  if (!is_dtensor(expert_index)) {
    return count_local(expert_index, num_experts);
  }
  const int64_t sample_dims = expert_index.dim() - 2;
  const auto& spec = spec_of(expert_index);
  Placements output;
  for (const auto& placement : spec.placements()) {
    output.push_back(
        placement.is_shard() && placement.tensor_dim() >= sample_dims
            ? Partial()
            : placement);
  }
  auto sizes = expert_index.sizes().slice(0, sample_dims).vec();
  sizes.push_back(num_experts);
  const std::string name = "expert counts";
  const auto counts = from_local_impl(
      count_local(to_local(expert_index), num_experts),
      spec.with(output),
      sizes,
      row_major_strides(sizes),
      name);
  return redistribute_to(counts, spec_of(counts).without_partial(), name);
}

} // namespace weft::dtensor
