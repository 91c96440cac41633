#include "checkpoint/load/load_replicas.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

namespace weft::checkpoint {
namespace {

std::vector<SaveItem> items_to_read(const std::vector<LoadTarget>& targets) {
  std::vector<SaveItem> items;
  for (const auto& target : targets) {
    items.push_back(target.item.item);
    items.back().item_bytes =
        static_cast<int64_t>(c10::elementSize(target.dtype));
  }
  return items;
}

// Returns the average bytes per rank, which is identical on all ranks.
int64_t average_part_bytes(const SaveItem& item) {
  int64_t bytes = item.item_bytes;
  for (const int64_t size : item.sizes) {
    bytes *= size;
  }
  for (int64_t i = 0; i < item.spec.mesh_ndim(); ++i) {
    if (item.spec.placement(i).is_shard()) {
      bytes /= item.spec.mesh().size(i);
    }
  }
  return bytes;
}

// Broadcasts small tensors in one message. Packing the large ones, too, would
// cost another copy.
void broadcast_all(
    mesh::Communicator& group,
    const std::vector<at::Tensor>& bytes,
    int64_t root) {
  constexpr int64_t kLarge = 1 << 20;
  std::vector<mesh::Work> works;
  std::vector<at::Tensor> small;
  for (const auto& each : bytes) {
    if (each.numel() < kLarge) {
      small.push_back(each);
    } else {
      works.push_back(group.broadcast(each, root, "checkpoint"));
    }
  }
  if (!small.empty()) {
    works.push_back(group.broadcast_coalesced(small, root, "checkpoint"));
  }
  for (auto& work : works) {
    work.wait();
  }
}

// Views a part as bytes, because backends need not support its dtype.
at::Tensor as_bytes(const at::Tensor& part) {
  return part.view({-1}).view(at::kByte);
}

} // namespace

LoadReplicas::LoadReplicas(
    const std::vector<LoadTarget>& targets,
    mesh::World world)
    : plan_(items_to_read(targets), world.world_size()),
      world_(std::move(world)) {
  for (size_t i = 0; i < targets.size(); ++i) {
    route_of_.push_back(route_number(i));
  }
}

size_t LoadReplicas::route_number(size_t i) {
  auto route = route_of(i);
  for (size_t r = 0; r < routes_.size(); ++r) {
    if (routes_[r].mesh == route.mesh && routes_[r].stages == route.stages) {
      return r;
    }
  }
  routes_.push_back(std::move(route));
  return routes_.size() - 1;
}

LoadReplicas::Route LoadReplicas::route_of(size_t i) const {
  const auto& spec = plan_.items()[i].spec;
  const int64_t reader = plan_.writer_of(i, world_.rank());
  if (spec.mesh_ndim() == 0) {
    return {.mesh = std::nullopt, .stages = {{0, reader}}};
  }
  const auto& mesh = spec.mesh();
  Route route{.mesh = mesh, .stages = {}};
  const auto& ranks = mesh.ranks();
  auto index = std::ranges::find(ranks, reader) - ranks.begin();
  for (int64_t d = mesh.ndim(); d-- > 0;) {
    if (spec.placement(d).is_replicate() && mesh.size(d) > 1) {
      route.stages.push_back({d, index % mesh.size(d)});
    }
    index /= mesh.size(d);
  }
  return route;
}

bool LoadReplicas::is_reader(size_t i) const {
  return plan_.writer_of(i, world_.rank()) == world_.rank();
}

std::vector<std::pair<size_t, size_t>> LoadReplicas::batches(
    int64_t bytes) const {
  std::vector<std::pair<size_t, size_t>> result;
  int64_t so_far = 0;
  for (size_t i = 0; i < plan_.items().size(); ++i) {
    const auto part = average_part_bytes(plan_.items()[i]);
    if (result.empty() || so_far + part > bytes) {
      result.emplace_back(i, i);
      so_far = 0;
    }
    result.back().second = i + 1;
    so_far += part;
  }
  return result;
}

void LoadReplicas::broadcast(size_t first, const std::vector<at::Tensor>& parts)
    const {
  std::map<size_t, std::vector<at::Tensor>> by_route;
  for (size_t k = 0; k < parts.size(); ++k) {
    // Ranks that receive the same part agree on whether it is empty.
    if (parts[k].numel() > 0) {
      by_route[route_of_[first + k]].push_back(as_bytes(parts[k]));
    }
  }
  for (const auto& [number, bytes] : by_route) {
    run(routes_[number], bytes);
  }
}

// Runs the stages in order. A rank takes part in a stage if its coordinates in
// the mesh dims of all later stages are those of the reader.
void LoadReplicas::run(const Route& route, const std::vector<at::Tensor>& bytes)
    const {
  if (!route.mesh) {
    auto group = world_.group();
    broadcast_all(group, bytes, route.stages[0].root);
    return;
  }
  for (size_t s = 0; s < route.stages.size(); ++s) {
    const bool takes_part = std::all_of(
        route.stages.begin() + static_cast<std::ptrdiff_t>(s) + 1,
        route.stages.end(),
        [&](const Stage& later) {
          return route.mesh->coordinate(later.mesh_dim) == later.root;
        });
    if (takes_part) {
      const auto& [mesh_dim, root] = route.stages[s];
      broadcast_all(route.mesh->group(mesh_dim), bytes, root);
    }
  }
}

} // namespace weft::checkpoint
