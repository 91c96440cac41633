#include "checkpoint/save_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace weft::checkpoint {
namespace {

/// A box and the ranks that hold it, in ascending order.
struct Replicas {
  dtensor::LocalBox box;
  std::vector<int64_t> ranks;
};

int64_t numel(const std::vector<int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> coordinate_at(
    int64_t index,
    const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = index % shape[i];
    index /= shape[i];
  }
  return coordinate;
}

std::vector<Replicas> distinct_boxes(const SaveItem& item, int64_t world_size) {
  if (item.spec.mesh_ndim() == 0) {
    std::vector<int64_t> all(world_size);
    std::iota(all.begin(), all.end(), 0);
    return {
        {{std::vector<int64_t>(item.sizes.size(), 0), item.sizes},
         std::move(all)}};
  }
  const auto& mesh = item.spec.mesh();
  // By offset: boxes of one tensor that are not empty begin at different ones.
  std::map<std::vector<int64_t>, Replicas> boxes;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    auto box = dtensor::local_box_at(
        item.spec, item.sizes, coordinate_at(i, mesh.shape()));
    if (numel(box.sizes) > 0) {
      auto& replicas = boxes[box.offset];
      replicas.box = std::move(box);
      replicas.ranks.push_back(mesh.ranks()[i]);
    }
  }
  std::vector<Replicas> result;
  for (auto& [offset, replicas] : boxes) {
    std::sort(replicas.ranks.begin(), replicas.ranks.end());
    result.push_back(std::move(replicas));
  }
  return result;
}

int64_t bytes_of(const SaveItem& item, const dtensor::LocalBox& box) {
  return numel(box.sizes) * item.item_bytes;
}

} // namespace

std::vector<PlannedChunk> plan_save(
    const std::vector<SaveItem>& items,
    int64_t world_size) {
  struct Candidate {
    size_t item;
    Replicas replicas;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < items.size(); ++i) {
    if (numel(items[i].sizes) > 0) {
      for (auto& replicas : distinct_boxes(items[i], world_size)) {
        candidates.push_back({i, std::move(replicas)});
      }
    }
  }
  // Largest first: the small ones even out what the large ones leave.
  std::ranges::stable_sort(
      candidates, std::greater<>(), [&](const Candidate& candidate) {
        return bytes_of(items[candidate.item], candidate.replicas.box);
      });
  std::vector<int64_t> load(world_size, 0);
  std::vector<PlannedChunk> plan;
  for (auto& [item, replicas] : candidates) {
    const int64_t writer = *std::ranges::min_element(
        replicas.ranks, {}, [&](int64_t rank) { return load[rank]; });
    load[writer] += bytes_of(items[item], replicas.box);
    plan.push_back({item, std::move(replicas.box), writer});
  }
  return plan;
}

} // namespace weft::checkpoint
