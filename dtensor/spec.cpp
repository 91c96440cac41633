#include "dtensor/spec.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "mesh/error.h"

namespace weft::dtensor {

// Note [Uneven shards]
// ~~~~~~~~~~~~~~~~~~~~
// The split is at::chunk's: ceil(size / num_shards) rows each, so trailing
// shards can be short or empty (5 rows over 4 ranks: 2, 2, 1, 0).
ShardRange shard_range(int64_t size, int64_t num_shards, int64_t index) {
  const int64_t chunk = (size + num_shards - 1) / num_shards;
  const int64_t begin = std::min(index * chunk, size);
  return {begin, std::min(chunk, size - begin), chunk};
}

struct DTensorSpec::Entry {
  Placements placements;
};

namespace {

// The table of a mesh's specs lives in the mesh's shared state.
struct SpecTable {
  std::mutex mutex;
  std::map<std::vector<int64_t>, std::unique_ptr<DTensorSpec::Entry>> entries;
};

std::vector<int64_t> codes(const Placements& placements) {
  std::vector<int64_t> key;
  key.reserve(placements.size());
  for (const auto& placement : placements) {
    key.push_back(placement.code());
  }
  return key;
}

// The only spec on the mesh of no dims.
const DTensorSpec::Entry* unplaced() {
  static const DTensorSpec::Entry entry;
  return &entry;
}

const DTensorSpec::Entry* intern(
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  if (mesh.ndim() == 0) {
    return unplaced();
  }
  auto& table = mesh.extension<SpecTable>();
  const std::lock_guard lock(table.mutex);
  auto& entry = table.entries[codes(placements)];
  if (!entry) {
    entry = std::make_unique<DTensorSpec::Entry>(placements);
  }
  return entry.get();
}

} // namespace

DTensorSpec::DTensorSpec() : entry_(unplaced()) {}

DTensorSpec::DTensorSpec(
    const mesh::DeviceMesh& mesh,
    const Placements& placements)
    : mesh_(mesh) {
  WEFT_CHECK_EQ(
      "spec",
      placements.size(),
      static_cast<size_t>(mesh.ndim()),
      mesh::ErrorContext{mesh.describe_rank()},
      "Give one placement a mesh dim, not ",
      dtensor::to_string(placements),
      ".");
  entry_ = intern(mesh, placements);
}

const Placements& DTensorSpec::placements() const {
  return entry_->placements;
}

bool DTensorSpec::has_partial() const {
  return std::ranges::any_of(
      placements(), [](const auto& p) { return p.is_partial(); });
}

bool DTensorSpec::has_shard() const {
  return std::ranges::any_of(
      placements(), [](const auto& p) { return p.is_shard(); });
}

DTensorSpec DTensorSpec::with(const Placements& placements) const {
  return {mesh(), placements};
}

DTensorSpec DTensorSpec::with(int64_t mesh_dim, Placement placement) const {
  Placements changed = placements();
  changed.at(mesh_dim) = placement;
  return with(changed);
}

DTensorSpec DTensorSpec::without_partial() const {
  if (!has_partial()) {
    return *this;
  }
  Placements changed = placements();
  for (auto& placement : changed) {
    placement = placement.is_partial() ? Replicate() : placement;
  }
  return with(changed);
}

std::string DTensorSpec::to_string() const {
  if (mesh_ndim() == 0) {
    return "unplaced";
  }
  return dtensor::to_string(placements()) + " on " + mesh().to_string();
}

LocalBox local_box(const DTensorSpec& spec, c10::IntArrayRef global_sizes) {
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    coordinate.push_back(spec.mesh().coordinate(i));
  }
  return local_box_at(spec, global_sizes, coordinate);
}

LocalBox local_box_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate) {
  LocalBox box{
      std::vector<int64_t>(global_sizes.size(), 0), global_sizes.vec()};
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    const auto& placement = spec.placement(i);
    if (!placement.is_shard()) {
      continue;
    }
    const int64_t dim = placement.tensor_dim();
    const auto range =
        shard_range(box.sizes.at(dim), spec.mesh().size(i), coordinate[i]);
    box.offset[dim] += range.begin;
    box.sizes[dim] = range.length;
  }
  return box;
}

std::vector<int64_t> dense_strides(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return strides[a] > strides[b];
  });
  std::vector<int64_t> dense(sizes.size());
  int64_t stride = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    dense[*it] = stride;
    stride *= std::max<int64_t>(sizes[*it], 1);
  }
  return dense;
}

std::vector<int64_t> row_major_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

} // namespace weft::dtensor
