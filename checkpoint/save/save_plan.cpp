#include "checkpoint/save/save_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include <c10/util/Exception.h>

namespace weft::checkpoint {
namespace {

// The writer along a mesh dim that shards the tensor: each rank writes its
// shard.
constexpr int64_t kOwn = -1;

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Returns the shape of the mesh. An item without mesh dims counts as replicated
// over a 1-D mesh of all ranks.
std::vector<int64_t> mesh_shape(const SaveItem& item, int64_t world_size) {
  return item.spec.mesh_ndim() == 0 ? std::vector<int64_t>{world_size}
                                    : item.spec.mesh().shape();
}

int64_t rank_at(const SaveItem& item, int64_t index) {
  return item.spec.mesh_ndim() == 0
             ? index
             : item.spec.mesh().ranks()[static_cast<size_t>(index)];
}

bool is_replicated(const SaveItem& item, size_t mesh_dim) {
  return item.spec.mesh_ndim() == 0 ||
         item.spec.placement(static_cast<int64_t>(mesh_dim)).is_replicate();
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

int64_t index_at(
    const std::vector<int64_t>& coordinate,
    const std::vector<int64_t>& shape) {
  int64_t index = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    index = index * shape[i] + coordinate[i];
  }
  return index;
}

// The coordinates of a rank in each mesh, cached because items share few
// meshes.
class Coordinates {
 public:
  Coordinates(int64_t rank, int64_t world_size)
      : rank_(rank), world_size_(world_size) {}

  const std::vector<int64_t>& of(const SaveItem& item) {
    if (item.spec.mesh_ndim() == 0) {
      return known_[{}].empty() ? known_[{}] = {rank_} : known_[{}];
    }
    const auto& ranks = item.spec.mesh().ranks();
    auto& coordinate = known_[&ranks];
    if (coordinate.empty()) {
      const auto found = std::ranges::find(ranks, rank_);
      TORCH_INTERNAL_ASSERT(found != ranks.end(), "no rank ", rank_);
      coordinate =
          coordinate_at(found - ranks.begin(), mesh_shape(item, world_size_));
    }
    return coordinate;
  }

 private:
  int64_t rank_;
  int64_t world_size_;
  std::map<const void*, std::vector<int64_t>> known_;
};

// Items that have the same mesh and the same replicated mesh dims.
struct ReplicaGroup {
  std::vector<size_t> items;
  std::vector<size_t> repeated;
  int64_t replicas = 1;
};

// Returns the bytes of the largest local tensor of the item.
int64_t part_bytes(const SaveItem& item, int64_t world_size) {
  if (item.spec.mesh_ndim() == 0) {
    return product(item.sizes) * item.item_bytes;
  }
  const std::vector<int64_t> first(mesh_shape(item, world_size).size(), 0);
  return product(dtensor::local_sizes_at(item.spec, item.sizes, first)) *
         item.item_bytes;
}

// Numbers meshes with the same shape and ranks alike, in the order of the
// items, so that the numbers are equal on all ranks.
class MeshNumbers {
 public:
  size_t of(const SaveItem& item) {
    if (item.spec.mesh_ndim() == 0) {
      return 0;
    }
    const auto& mesh = item.spec.mesh();
    const auto [known, is_new] = by_address_.try_emplace(&mesh.ranks(), 0);
    if (is_new) {
      const auto same = std::ranges::find_if(meshes_, [&](const auto& other) {
        return other.shape() == mesh.shape() && other.ranks() == mesh.ranks();
      });
      known->second = static_cast<size_t>(same - meshes_.begin()) + 1;
      if (same == meshes_.end()) {
        meshes_.push_back(mesh);
      }
    }
    return known->second;
  }

 private:
  std::map<const void*, size_t> by_address_;
  std::vector<mesh::DeviceMesh> meshes_;
};

std::vector<ReplicaGroup> alike(
    const std::vector<SaveItem>& items,
    int64_t world_size) {
  MeshNumbers meshes;
  std::map<std::pair<size_t, std::vector<size_t>>, ReplicaGroup> found;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto shape = mesh_shape(items[i], world_size);
    std::vector<size_t> repeated;
    int64_t replicas = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (is_replicated(items[i], d)) {
        repeated.push_back(d);
        replicas *= shape[d];
      }
    }
    auto& group = found[{meshes.of(items[i]), repeated}];
    group.items.push_back(i);
    group.repeated = std::move(repeated);
    group.replicas = replicas;
  }
  std::vector<ReplicaGroup> result;
  for (auto& [key, group] : found) {
    result.push_back(std::move(group));
  }
  // Groups with few replicas have the least choice of writers, so they come
  // first. The groups with more replicas balance the load after them.
  std::ranges::stable_sort(result, {}, &ReplicaGroup::replicas);
  return result;
}

// Returns the replica index of each rank, counted row-major over the replicated
// mesh dims of `group`.
std::vector<int64_t> replica_of_ranks(
    const SaveItem& item,
    const ReplicaGroup& group,
    int64_t world_size) {
  const auto shape = mesh_shape(item, world_size);
  std::vector<int64_t> replica(static_cast<size_t>(world_size), 0);
  for (int64_t index = 0; index < product(shape); ++index) {
    const auto coordinate = coordinate_at(index, shape);
    int64_t number = 0;
    for (const size_t d : group.repeated) {
      number = number * shape[d] + coordinate[d];
    }
    replica[static_cast<size_t>(rank_at(item, index))] = number;
  }
  return replica;
}

// Returns the replica that writes each item of `group`. Assigns the largest
// items first, each to the replica with the least bytes so far. `load` is the
// bytes that each rank writes, and is updated.
std::map<size_t, int64_t> choose_replicas(
    const std::vector<SaveItem>& items,
    const ReplicaGroup& group,
    std::vector<int64_t>& load) {
  const auto world_size = static_cast<int64_t>(load.size());
  const auto replica_of =
      replica_of_ranks(items[group.items.front()], group, world_size);
  std::vector<int64_t> most(static_cast<size_t>(group.replicas), 0);
  for (size_t rank = 0; rank < load.size(); ++rank) {
    auto& so_far = most[static_cast<size_t>(replica_of[rank])];
    so_far = std::max(so_far, load[rank]);
  }
  using Entry = std::pair<int64_t, int64_t>; // bytes, replica
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> least;
  for (size_t r = 0; r < most.size(); ++r) {
    least.emplace(most[r], static_cast<int64_t>(r));
  }
  std::vector<std::pair<int64_t, size_t>> sized;
  for (const size_t i : group.items) {
    sized.emplace_back(part_bytes(items[i], world_size), i);
  }
  std::ranges::stable_sort(
      sized, std::greater<>(), &std::pair<int64_t, size_t>::first);
  std::map<size_t, int64_t> chosen;
  std::vector<int64_t> added(most.size(), 0);
  for (const auto& [bytes, i] : sized) {
    auto [so_far, replica] = least.top();
    least.pop();
    chosen[i] = replica;
    added[static_cast<size_t>(replica)] += bytes;
    least.emplace(so_far + bytes, replica);
  }
  for (size_t rank = 0; rank < load.size(); ++rank) {
    load[rank] += added[static_cast<size_t>(replica_of[rank])];
  }
  return chosen;
}

} // namespace

SavePlan::SavePlan(std::vector<SaveItem> items, int64_t world_size)
    : items_(std::move(items)),
      world_size_(world_size),
      writers_(items_.size()) {
  std::vector<int64_t> load(static_cast<size_t>(world_size), 0);
  for (const auto& group : alike(items_, world_size)) {
    // Without replicas, every rank writes its own shard. These are about equal,
    // so `load` does not include them.
    const auto chosen = group.replicas == 1
                            ? std::map<size_t, int64_t>()
                            : choose_replicas(items_, group, load);
    for (const size_t i : group.items) {
      const auto shape = mesh_shape(items_[i], world_size);
      writers_[i].assign(shape.size(), kOwn);
      const auto found = chosen.find(i);
      auto rest = found == chosen.end() ? 0 : found->second;
      for (size_t k = group.repeated.size(); k-- > 0;) {
        const size_t d = group.repeated[k];
        writers_[i][d] = rest % shape[d];
        rest /= shape[d];
      }
    }
  }
}

std::vector<PlannedChunk> SavePlan::chunks_of(int64_t rank) const {
  Coordinates coordinates(rank, world_size_);
  std::vector<PlannedChunk> chunks;
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto& coordinate = coordinates.of(items_[i]);
    bool writes = product(items_[i].sizes) > 0;
    for (size_t d = 0; writes && d < coordinate.size(); ++d) {
      writes = writers_[i][d] == kOwn || writers_[i][d] == coordinate[d];
    }
    if (!writes) {
      continue;
    }
    int64_t part = 0;
    if (items_[i].spec.mesh_ndim() == 0) {
      const std::vector<int64_t> origin(items_[i].sizes.size(), 0);
      chunks.push_back({i, part, {{origin, items_[i].sizes}, origin}});
      continue;
    }
    for (auto& held :
         held_shards(items_[i].spec, items_[i].sizes, coordinate)) {
      chunks.push_back({i, part++, std::move(held)});
    }
  }
  return chunks;
}

int64_t SavePlan::writer_of(size_t item, int64_t rank) const {
  const auto& what = items_.at(item);
  Coordinates coordinates(rank, world_size_);
  auto coordinate = coordinates.of(what);
  for (size_t d = 0; d < coordinate.size(); ++d) {
    if (writers_[item][d] != kOwn) {
      coordinate[d] = writers_[item][d];
    }
  }
  return rank_at(what, index_at(coordinate, mesh_shape(what, world_size_)));
}

} // namespace weft::checkpoint
