#include <algorithm>
#include <numeric>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/redistribute/step_message.h"
#include "mesh/error/error.h"

// Note [From mesh to mesh]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A tensor on a slice of a mesh equals a tensor on the full mesh with Replicate
// along the dims that the slice leaves out: all parallel slices are assumed to
// hold the same values. So a redistribution between a mesh and its slice is a
// plan on the larger mesh, and the change of the mesh itself sends nothing.
// Between two meshes over the same ranks (other dims, another order, another
// root), Partials are reduced first. Then one exchange over all ranks sends
// each rank the data that it lacks. Between slices that share only some ranks,
// the redistribution goes through their roots, which all have every rank of the
// world.

namespace weft::dtensor {
namespace {

using mesh::DeviceMesh;

bool is_slice_of(const DeviceMesh& slice, const DeviceMesh& mesh) {
  return slice.root() == mesh.root() &&
         std::ranges::all_of(slice.mesh_dim_names(), [&](const auto& name) {
           return mesh.has_mesh_dim(name);
         });
}

// Returns the spec on `mesh`, of which the spec's own mesh is a slice. The
// other dims are Replicate.
DTensorSpec widened(const DTensorSpec& spec, const DeviceMesh& mesh) {
  Placements placements(mesh.ndim());
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    placements[mesh.mesh_dim(spec.mesh().mesh_dim_names()[i])] =
        spec.placement(i);
  }
  return {mesh, placements};
}

std::vector<int64_t> sorted_ranks(const DeviceMesh& mesh) {
  auto ranks = mesh.ranks();
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<Region> regions_of_ranks(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    const std::vector<int64_t>& ranks) {
  const auto& mesh = spec.mesh();
  std::vector<Region> regions;
  for (const int64_t rank : ranks) {
    int64_t index =
        std::ranges::find(mesh.ranks(), rank) - mesh.ranks().begin();
    std::vector<int64_t> coordinate(mesh.ndim());
    for (int64_t i = mesh.ndim(); i-- > 0;) {
      coordinate[i] = index % mesh.size(i);
      index /= mesh.size(i);
    }
    regions.push_back(local_ranges_at(spec, sizes, coordinate));
  }
  return regions;
}

// Returns false if every rank only keeps parts of what it has. The result is
// identical on all ranks.
bool moves_anything(const ExchangeMap& map, int64_t ranks) {
  // busiest() compares all pairs of ranks, so larger groups always communicate.
  constexpr int64_t kMaxRanks = 64;
  return ranks > kMaxRanks || map.busiest() > 0;
}

at::Tensor exchange_over_ranks(
    const at::Tensor& local,
    c10::IntArrayRef sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name) {
  const auto whole_from = from.without_partial();
  const auto whole_to = to.without_partial();
  auto moved = redistribute_local(local, sizes, from, whole_from, name);
  std::vector<int64_t> dims(from.mesh_ndim());
  std::iota(dims.begin(), dims.end(), 0);
  const auto group = group_of(from.mesh(), dims);
  const ExchangeMap map(
      regions_of_ranks(whole_from, sizes, group.ranks()),
      regions_of_ranks(whole_to, sizes, group.ranks()));
  const auto message = make_exchange(group, map, moved);
  if (moves_anything(map, group.size())) {
    send(message, name).wait();
  }
  moved = message.finish();
  return redistribute_local(moved, sizes, whole_to, to, name);
}

void check_same_world(
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name,
    c10::IntArrayRef sizes) {
  const auto from_root = from.mesh().root();
  const auto to_root = to.mesh().root();
  const bool same = from_root.ranks() == to_root.ranks() &&
                    from_root.rank() == to_root.rank();
  const bool same_ranks = sorted_ranks(from.mesh()) == sorted_ranks(to.mesh());
  const bool reachable =
      same && (same_ranks || (is_slice_of(from.mesh(), from_root) &&
                              is_slice_of(to.mesh(), to_root)));
  TORCH_CHECK_VALUE(
      reachable,
      "[redistribute] ranks of mesh ",
      from.mesh().to_string(),
      " == ranks of mesh ",
      to.mesh().to_string(),
      ": ",
      c10::IntArrayRef(from.mesh().ranks()),
      " vs ",
      c10::IntArrayRef(to.mesh().ranks()),
      "; tensor \"",
      name,
      "\" ",
      sizes,
      " from ",
      from.to_string(),
      " to ",
      to.to_string(),
      ". Meshes over the ranks of one world, and their slices, can exchange "
      "tensors. (",
      from.mesh().describe_rank(),
      ")");
}

} // namespace

at::Tensor redistribute_across(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name) {
  if (from.mesh() == to.mesh()) {
    return redistribute_local(local, global_sizes, from, to, name);
  }
  check_same_world(from, to, name, global_sizes);
  if (is_slice_of(to.mesh(), from.mesh())) {
    return redistribute_local(
        local, global_sizes, from, widened(to, from.mesh()), name);
  }
  if (is_slice_of(from.mesh(), to.mesh())) {
    return redistribute_local(
        local, global_sizes, widened(from, to.mesh()), to, name);
  }
  if (sorted_ranks(from.mesh()) == sorted_ranks(to.mesh())) {
    return exchange_over_ranks(local, global_sizes, from, to, name);
  }
  return redistribute_across(
      local,
      global_sizes,
      widened(from, from.mesh().root()),
      widened(to, to.mesh().root()),
      name);
}

} // namespace weft::dtensor
