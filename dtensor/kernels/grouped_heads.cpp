#include "dtensor/kernels/grouped_heads.h"

#include <vector>

#include <torch/torch.h>

#include "dtensor/spec/dim_shards.h"

namespace weft::dtensor::kernels {

int64_t head_count(const at::Tensor& tensor) {
  return tensor.dim() >= 3 ? tensor.size(-3) : 1;
}

bool has_groups(const at::Tensor& q, const at::Tensor& other) {
  return other.dim() == q.dim() && head_count(other) > 1 &&
         head_count(other) != head_count(q) &&
         head_count(q) % head_count(other) == 0;
}

bool groups_lie_alike(
    const DTensorSpec& spec,
    const at::Tensor& q,
    const at::Tensor& other) {
  const auto cuts = dim_shards(
      spec.placements(), spec.mesh().shape(), q.dim() - 3, /*all_sizes=*/true);
  const int64_t heads = q.size(-3);
  const int64_t groups = other.size(-3);
  int64_t shards = 1;
  for (const auto& cut : cuts) {
    if (cut.split_factor != 1 || !cut.sizes.empty()) {
      return false;
    }
    shards *= cut.shards;
  }
  if (heads % shards == 0 && groups % shards == 0) {
    return true;
  }
  for (int64_t rank = 0; rank < shards; ++rank) {
    const auto own = shard_range(heads, shards, rank);
    const auto theirs = shard_range(groups, shards, rank);
    if (cuts.size() != 1 || own.length != theirs.length * (heads / groups)) {
      return false;
    }
  }
  return true;
}

at::Tensor heads_for(
    const DTensorSpec& spec,
    const at::Tensor& q,
    const at::Tensor& whole) {
  const int64_t group = q.size(-3) / whole.size(-3);
  std::vector<int64_t> heads;
  const auto ranges = local_ranges(spec, q.sizes());
  for (const auto& range : ranges[q.dim() - 3]) {
    for (int64_t h = range.begin; h < range.begin + range.length; ++h) {
      heads.push_back(h / group);
    }
  }
  if (heads.empty()) {
    return whole;
  }
  const auto here = static_cast<int64_t>(heads.size());
  const int64_t count = heads.back() - heads.front() + 1;
  bool whole_groups = here % count == 0;
  for (int64_t i = 0; whole_groups && i < here; ++i) {
    whole_groups = heads[i] == heads.front() + i / (here / count);
  }
  if (whole_groups) {
    return whole.narrow(-3, heads.front(), count);
  }
  return whole.index_select(
      whole.dim() - 3, at::tensor(heads, at::kLong).to(whole.device()));
}

} // namespace weft::dtensor::kernels
