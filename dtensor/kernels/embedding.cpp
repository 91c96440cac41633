// Row lookup. Per mesh dim:
//   weight S(0) (vocab-parallel)  a rank looks up its rows; output Partial
//   weight S(1)                   output sharded in the embedding dim
//   weight R                      output sharded like the indices

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/region.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct EmbeddingPlacements {
  Placements weight, weight_grad, indices, output;
};

EmbeddingPlacements plan_embedding(
    const Placements& weight,
    const Placements& indices,
    int64_t indices_ndim) {
  EmbeddingPlacements plan;
  const auto push = [&](Placement w, Placement gw, Placement i, Placement y) {
    plan.weight.push_back(w);
    plan.weight_grad.push_back(gw);
    plan.indices.push_back(i);
    plan.output.push_back(y);
  };
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i].is_shard(0)) {
      push(Shard(0), Shard(0), Replicate(), Partial());
    } else if (weight[i].is_shard(1)) {
      push(Shard(1), Shard(1), Replicate(), Shard(indices_ndim));
    } else if (indices[i].is_shard()) {
      push(Replicate(), Partial(), indices[i], indices[i]);
    } else {
      push(Replicate(), Replicate(), Replicate(), Replicate());
    }
  }
  return plan;
}

// Looks up rows in `weight`, which has the rows [begin, begin + weight.size(0))
// of the vocabulary. Returns zeros for indices outside of them.
at::Tensor lookup_part(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t begin,
    int64_t padding_idx) {
  const int64_t rows = weight.size(0);
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  if (rows == 0) {
    // The empty shard must be in the graph, so that it gets a gradient on this
    // rank, too.
    return at::zeros(sizes, weight.options()) + weight.sum();
  }
  const auto shifted = indices - begin;
  const auto outside = shifted.lt(0).logical_or_(shifted.ge(rows));
  const auto local_padding = padding_idx >= begin && padding_idx < begin + rows
                                 ? padding_idx - begin
                                 : -1;
  return at::embedding(weight, shifted.masked_fill(outside, 0), local_padding)
      .masked_fill(outside.unsqueeze(-1), 0);
}

void check_indices(const at::Tensor& indices, int64_t vocabulary) {
  if (indices.device().is_cpu() && indices.numel() != 0) {
    const auto [low, high] = at::aminmax(indices);
    TORCH_CHECK_INDEX(
        low.item<int64_t>() >= 0 && high.item<int64_t>() < vocabulary,
        "[embedding] indices: got ",
        low.item<int64_t>(),
        " to ",
        high.item<int64_t>(),
        ", expected 0 to ",
        vocabulary - 1,
        ", the rows of the weight.");
  }
}

} // namespace

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& indices,
    c10::SymInt padding_idx,
    bool scale_grad_by_freq,
    bool sparse) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !sparse && !scale_grad_by_freq,
      "[embedding] sparse gradients and scale_grad_by_freq are not supported "
      "for DTensors. Leave both off.");
  const auto spec = common_spec({&weight, &indices});
  const auto* weight_impl = dtensor_impl(weight);
  const OpLayout layout = weight_impl && weight_impl->parameter_info
                              ? weight_impl->parameter_info->embedding
                              : OpLayout();
  check_operands(
      "embedding", spec, {weight, {indices, layout.input.has_value()}});
  const auto w = place(weight, spec);
  const auto name = label("embedding", weight);
  const auto i = place_as(indices, spec, layout, "embedding", weight);
  const auto plan =
      plan_embedding(spec_of(w).placements(), spec_of(i).placements(), i.dim());

  const auto w_local =
      to_local_impl(w, spec.with(plan.weight), plan.weight_grad, name);
  const auto i_local = to_local_impl(
      i,
      spec.with(plan.indices),
      plan.indices,
      name,
      {.asked = layout.input.has_value()});
  const auto output_spec = spec.with(plan.output);
  const int64_t padding = padding_idx.expect_int();
  at::Tensor local;
  if (output_spec.has_partial()) {
    check_indices(i_local, w.size(0));
    const auto box = local_box(spec.with(plan.weight), w.sizes());
    local = lookup_part(w_local, i_local, box.offset[0], padding);
  } else {
    local = at::embedding(w_local, i_local, padding);
  }
  auto sizes = i.sizes().vec();
  sizes.push_back(w.size(1));
  auto output = from_local_impl(
      local, output_spec, sizes, row_major_strides(sizes), name);
  if (layout.output) {
    Placements target;
    for (const auto& placement : *layout.output) {
      target.push_back(placement.normalized(output.dim()));
    }
    output = redistribute_to(output, spec.with(target), name);
  }
  return output;
}

} // namespace weft::dtensor::kernels
