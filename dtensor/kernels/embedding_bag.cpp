// Sums, means and maxima of bags of rows. Per mesh dim:
//   weight S(0) (vocab-parallel)  for sums and means, a rank adds the rows it
//                                 has; output Partial
//   weight S(1)                   output sharded in the embedding dim
//   weight R                      a rank computes its share of the bags if the
//                                 indices are sharded

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

enum Mode : int64_t { kSum, kMean, kMax };

struct BagPlacements {
  Placements weight, weight_grad, sample_grad, output;
};

BagPlacements plan_bags(
    const Placements& weight,
    const Placements& indices,
    bool rows_may_be_cut,
    bool bags_may_be_cut) {
  const auto r = Replicate();
  BagPlacements plan;
  const auto push = [&](Placement w, Placement gw, Placement gs, Placement y) {
    plan.weight.push_back(w);
    plan.weight_grad.push_back(gw);
    plan.sample_grad.push_back(gs);
    plan.output.push_back(y);
  };
  for (size_t i = 0; i < weight.size(); ++i) {
    // The rows or columns of a StridedShard are not adjacent, so such a weight
    // is replicated.
    const bool is_strided = weight[i].is_strided();
    if (weight[i].is_shard(1) && !is_strided) {
      push(weight[i], weight[i], Partial(), weight[i]);
    } else if (weight[i].is_shard(0) && !is_strided && rows_may_be_cut) {
      push(weight[i], weight[i], Partial(), Partial());
    } else if (indices[i].is_shard() && bags_may_be_cut) {
      push(r, Partial(), Partial(), Shard(0));
    } else {
      push(r, r, r, r);
    }
  }
  return plan;
}

// The bags that this rank computes, and their part of the indices.
struct Bags {
  at::Tensor indices;
  at::Tensor offsets;
  std::optional<at::Tensor> sample_weights;
  /// The number of indices in each bag, without padding.
  at::Tensor sizes;
};

at::Tensor
bag_ends(const at::Tensor& offsets, int64_t indices, bool include_last_offset) {
  if (include_last_offset) {
    return offsets.narrow(0, 1, offsets.size(0) - 1);
  }
  return at::cat(
      {offsets.narrow(0, 1, offsets.size(0) - 1),
       at::full({1}, indices, offsets.options())});
}

Bags cut_bags(
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const std::optional<at::Tensor>& sample_weights,
    bool include_last_offset,
    int64_t padding_idx,
    const LocalBox& box) {
  const auto ends = bag_ends(offsets, indices.size(0), include_last_offset);
  const int64_t first = box.offset[0];
  const int64_t count = box.sizes[0];
  const int64_t begin = count == 0 ? 0 : offsets[first].item<int64_t>();
  const int64_t end = count == 0 ? 0 : ends[first + count - 1].item<int64_t>();
  Bags bags;
  bags.indices = indices.narrow(0, begin, end - begin);
  bags.offsets = offsets.narrow(0, first, count) - begin;
  if (sample_weights) {
    bags.sample_weights = sample_weights->narrow(0, begin, end - begin);
  }
  const auto counted = at::cat(
      {at::zeros({1}, at::kLong),
       bags.indices.ne(padding_idx).to(at::kLong).cumsum(0)});
  bags.sizes = counted.index_select(0, ends.narrow(0, first, count) - begin) -
               counted.index_select(0, bags.offsets);
  return bags;
}

// Sums the rows of each bag that `weight` has: the rows [begin, begin +
// weight.size(0)) of the vocabulary.
at::Tensor sum_part(
    const at::Tensor& weight,
    const Bags& bags,
    int64_t begin,
    int64_t padding_idx) {
  const int64_t rows = weight.size(0);
  if (rows == 0) {
    // The empty shard and the sample weights must be in the graph, so that they
    // get gradients on this rank, too.
    auto nothing = weight.sum();
    if (bags.sample_weights) {
      nothing = nothing + bags.sample_weights->sum() * 0;
    }
    return at::zeros({bags.offsets.size(0), weight.size(1)}, weight.options()) +
           nothing;
  }
  const auto shifted = bags.indices - begin;
  const auto inside = shifted.ge(0)
                          .logical_and_(shifted.lt(rows))
                          .logical_and_(bags.indices.ne(padding_idx));
  auto factors = inside.to(weight.scalar_type());
  if (bags.sample_weights) {
    factors = factors * *bags.sample_weights;
  }
  return std::get<0>(at::embedding_bag(
      weight,
      shifted.masked_fill(inside.logical_not(), 0),
      bags.offsets,
      /*scale_grad_by_freq=*/false,
      kSum,
      /*sparse=*/false,
      factors));
}

// Returns the placements of numbers per bag: sharded where the output shards
// the bags, Replicate where it shards rows or columns of the weight.
Placements bags_of(const Placements& output) {
  auto placements = output;
  for (auto& placement : placements) {
    placement = placement.is_shard(0) ? placement : Replicate();
  }
  return placements;
}

struct LookupResult {
  at::Tensor output;
  at::Tensor largest;
};

LookupResult look_up(
    const at::Tensor& weight,
    const Bags& bags,
    bool scale_grad_by_freq,
    int64_t mode,
    std::optional<int64_t> padding_idx) {
  auto [output, offset2bag, sizes, largest] = at::embedding_bag(
      weight,
      bags.indices,
      bags.offsets,
      scale_grad_by_freq,
      mode,
      /*sparse=*/false,
      bags.sample_weights,
      /*include_last_offset=*/false,
      padding_idx);
  return {output.contiguous(), largest.contiguous()};
}

LookupResult look_up_part(
    const at::Tensor& weight,
    const Bags& bags,
    int64_t begin,
    int64_t mode,
    int64_t padding_idx) {
  auto output = sum_part(weight, bags, begin, padding_idx);
  if (mode == kMean) {
    output = output / bags.sizes.clamp_min(1).unsqueeze(1);
  }
  return {
      output, bags.indices.new_zeros({bags.offsets.size(0), weight.size(1)})};
}

struct Options {
  bool scale_grad_by_freq;
  int64_t mode;
  bool include_last_offset;
  std::optional<int64_t> padding_idx;
};

struct Share {
  std::string name;
  at::Tensor weight;
  Bags bags;
  DTensorSpec rows;
  DTensorSpec output;
  DTensorSpec bag_spec;
  /// The sizes of the full output.
  std::vector<int64_t> sizes;
  int64_t first_row;
  int64_t padding_idx;
};

Share enter_bags(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const std::optional<at::Tensor>& per_sample_weights,
    const Options& options) {
  const auto spec = common_spec({&weight, &indices});
  check_operands("embedding_bag", spec, {weight, indices, per_sample_weights});
  Share share;
  share.name = label("embedding_bag", weight);
  const auto w = place(weight, spec);
  const auto i = place(indices, spec);
  const bool counts = options.scale_grad_by_freq;
  const auto plan = plan_bags(
      spec_of(w).placements(),
      spec_of(i).placements(),
      options.mode != kMax && !counts,
      !counts);
  const Placements whole(spec.mesh_ndim(), Replicate());
  const auto enter = [&](const at::Tensor& tensor, const Placements& grad) {
    return to_local_impl(
        place(tensor, spec), spec.with(whole), grad, share.name);
  };
  std::optional<at::Tensor> samples;
  if (per_sample_weights && per_sample_weights->defined()) {
    samples = enter(*per_sample_weights, plan.sample_grad);
  }
  const auto starts = enter(offsets, whole);
  const int64_t rows = std::max<int64_t>(w.size(0), 1);
  share.padding_idx =
      options.padding_idx ? (*options.padding_idx + rows) % rows : -1;
  share.sizes = {
      starts.size(0) - (options.include_last_offset ? 1 : 0), w.size(1)};
  share.output = spec.with(plan.output);
  share.bag_spec = spec.with(bags_of(plan.output));
  share.bags = cut_bags(
      enter(i, whole),
      starts,
      samples,
      options.include_last_offset,
      share.padding_idx,
      local_box(share.bag_spec, share.sizes));
  share.rows = spec.with(plan.weight);
  share.first_row = local_box(share.rows, w.sizes()).offset[0];
  share.weight = to_local_impl(w, share.rows, plan.weight_grad, share.name);
  return share;
}

} // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset,
    std::optional<int64_t> padding_idx) {
  TORCH_CHECK_VALUE(
      !sparse,
      "[embedding_bag] sparse gradients are not supported for DTensors. Leave "
      "`sparse` off.");
  const auto share = enter_bags(
      weight,
      indices,
      offsets,
      per_sample_weights,
      {scale_grad_by_freq, mode, include_last_offset, padding_idx});
  const auto& bags = share.bags;
  const bool in_parts = share.output.has_partial() || bags.offsets.size(0) == 0;
  const auto looked =
      in_parts
          ? look_up_part(
                share.weight, bags, share.first_row, mode, share.padding_idx)
          : look_up(share.weight, bags, scale_grad_by_freq, mode, padding_idx);
  const auto leave = [&](const at::Tensor& local,
                         const DTensorSpec& where,
                         const std::vector<int64_t>& to) {
    return from_local_impl(local, where, to, row_major_strides(to), share.name);
  };
  // Results that the mode does not need are empty, as in libtorch.
  const auto none = leave(
      bags.offsets.new_empty({0}),
      share.rows.with(Placements(share.rows.mesh_ndim(), Replicate())),
      {0});
  return {
      leave(looked.output, share.output, share.sizes),
      none,
      leave(bags.sizes, share.bag_spec, {share.sizes[0]}),
      mode == kMax ? leave(looked.largest, share.output, share.sizes) : none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
embedding_bag_unpadded(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset) {
  return kernels::embedding_bag(
      weight,
      indices,
      offsets,
      scale_grad_by_freq,
      mode,
      sparse,
      per_sample_weights,
      include_last_offset,
      std::nullopt);
}

} // namespace weft::dtensor::kernels
