#include "dtensor/spec/spec.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include "mesh/error/error.h"

namespace weft::dtensor {

struct DTensorSpec::Entry {
  Placements placements;
  bool has_partial = false;
  bool has_shard = false;
  bool is_chunked = true;
  /// The next entry of the same bucket in the mesh's table.
  std::unique_ptr<Entry> next;

  Entry() = default;
  explicit Entry(const Placements& given) : placements(given) {
    for (const auto& placement : placements) {
      has_partial |= placement.is_partial();
      has_shard |= placement.is_shard();
      is_chunked &= !placement.is_shard() || placement.is_chunked();
    }
  }
};

namespace {

size_t hash_of(const Placements& placements) {
  uint64_t hash = placements.size();
  for (const auto& placement : placements) {
    hash = (hash ^ static_cast<uint64_t>(placement.code())) *
           0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

// The table of a mesh's specs, stored in the mesh's shared state. Entries are
// only added, so that lookups need neither a lock nor memory.
class SpecTable {
 public:
  using Entry = DTensorSpec::Entry;

  const Entry* find_or_add(const Placements& placements) {
    auto& bucket = buckets_[hash_of(placements) % kBuckets];
    if (const auto* entry = bucket.find(placements)) {
      return entry;
    }
    const std::lock_guard lock(mutex_);
    if (const auto* entry = bucket.find(placements)) {
      return entry;
    }
    auto entry = std::make_unique<Entry>(placements);
    entry->next = std::move(bucket.entries);
    bucket.entries = std::move(entry);
    bucket.first.store(bucket.entries.get(), std::memory_order_release);
    return bucket.entries.get();
  }

 private:
  static constexpr size_t kBuckets = 128;
  struct Bucket {
    std::unique_ptr<Entry> entries;
    std::atomic<const Entry*> first{nullptr};

    const Entry* find(const Placements& placements) const {
      const auto* entry = first.load(std::memory_order_acquire);
      while (entry && entry->placements != placements) {
        entry = entry->next.get();
      }
      return entry;
    }
  };

  std::mutex mutex_;
  std::array<Bucket, kBuckets> buckets_;
};

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
  return mesh.extension<SpecTable>().find_or_add(placements);
}

} // namespace

DTensorSpec::DTensorSpec() : entry_(unplaced()) {}

DTensorSpec::DTensorSpec(
    const mesh::DeviceMesh& mesh,
    const Placements& placements)
    : mesh_(mesh) {
  WEFT_CHECK(
      placements.size() == static_cast<size_t>(mesh.ndim()),
      "spec",
      mesh::ErrorContext{mesh.describe_rank()},
      "placements: got ",
      placements.size(),
      ", ",
      dtensor::to_string(placements),
      ", expected ",
      mesh.ndim(),
      ", one placement per mesh dim.");
  for (size_t i = 0; i < placements.size(); ++i) {
    const auto& rows = placements[i].shard_sizes();
    WEFT_CHECK(
        rows.empty() || static_cast<int64_t>(rows.size()) ==
                            mesh.size(static_cast<int64_t>(i)),
        "spec",
        mesh::ErrorContext{mesh.describe_rank()},
        "numbers of rows in ",
        placements[i].to_string(),
        " == ranks of mesh dim \"",
        mesh.mesh_dim_names()[i],
        "\": ",
        rows.size(),
        " vs ",
        mesh.shape()[i],
        ". Give one number per rank.");
  }
  entry_ = intern(mesh, placements);
}

const Placements& DTensorSpec::placements() const {
  return entry_->placements;
}

bool DTensorSpec::has_partial() const {
  return entry_->has_partial;
}

bool DTensorSpec::has_shard() const {
  return entry_->has_shard;
}

bool DTensorSpec::is_chunked() const {
  return entry_->is_chunked;
}

DTensorSpec DTensorSpec::with(const Placements& placements) const {
  // If nothing changes, the lookup in the table is skipped.
  return placements == this->placements() ? *this
                                          : DTensorSpec(mesh(), placements);
}

DTensorSpec DTensorSpec::with(int64_t mesh_dim, Placement placement) const {
  Placements changed = placements();
  changed.at(mesh_dim) = std::move(placement);
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

namespace {

std::vector<int64_t> own_coordinate(const DTensorSpec& spec) {
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    coordinate.push_back(spec.mesh().coordinate(i));
  }
  return coordinate;
}

DimShards dim_shards(const DTensorSpec& spec, int64_t tensor_dim) {
  return dtensor::dim_shards(
      spec.placements(), spec.mesh().shape(), tensor_dim);
}

// Throws if the given rows do not add up. Every rank throws the same error, not
// only the ranks that hold the part in question.
void refuse_rows(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    const DimShard& cut,
    int64_t given,
    int64_t size) {
  WEFT_CHECK(
      given == size,
      "spec",
      mesh::ErrorContext{spec.mesh().describe_rank()},
      "rows of ",
      spec.placement(cut.mesh_dim).to_string(),
      " on mesh dim \"",
      spec.mesh().mesh_dim_names()[cut.mesh_dim],
      "\" == rows that it shards: ",
      given,
      " vs ",
      size,
      " of a tensor of sizes ",
      global_sizes,
      " under ",
      dtensor::to_string(spec.placements()),
      ". Give each rank's rows of what the mesh dims before leave.");
}

// The first shard whose given rows do not add up to the rows that the shards
// before it leave on some rank, and both numbers of rows.
struct Misfit {
  DimShard cut;
  int64_t given;
  int64_t left;
};

std::optional<Misfit> find_misfit(
    const Placements& placements,
    const std::vector<int64_t>& mesh_shape,
    c10::IntArrayRef global_sizes) {
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    std::set<int64_t> left{global_sizes[d]};
    const auto cuts = dtensor::dim_shards(
        placements,
        mesh_shape,
        static_cast<int64_t>(d),
        /*all_sizes=*/true);
    for (const auto& cut : cuts) {
      const int64_t given =
          std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0});
      std::set<int64_t> next;
      for (const int64_t size : left) {
        if (!cut.sizes.empty() && given != size) {
          return Misfit{cut, given, size};
        }
        for (int64_t r = 0; r < cut.shards; ++r) {
          next.insert(shard_length(cut, size, r));
        }
      }
      left = std::move(next);
    }
  }
  return std::nullopt;
}

void check_rows(const DTensorSpec& spec, c10::IntArrayRef global_sizes) {
  const auto misfit =
      find_misfit(spec.placements(), spec.mesh().shape(), global_sizes);
  if (misfit) {
    refuse_rows(spec, global_sizes, misfit->cut, misfit->given, misfit->left);
  }
}

bool is_chunk_rule(const std::vector<int64_t>& rows) {
  const auto shards = static_cast<int64_t>(rows.size());
  const int64_t size = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  for (int64_t r = 0; r < shards; ++r) {
    if (rows[r] != shard_range(size, shards, r).length) {
      return false;
    }
  }
  return true;
}

bool has_ranges_at_any(
    const DimShards& cuts,
    int64_t size,
    size_t next,
    std::vector<int64_t>& coordinate) {
  if (next == cuts.size()) {
    return rows_at(cuts, size, coordinate).size() > 1;
  }
  for (int64_t r = 0; r < cuts[next].shards; ++r) {
    coordinate[cuts[next].mesh_dim] = r;
    if (has_ranges_at_any(cuts, size, next + 1, coordinate)) {
      return true;
    }
  }
  return false;
}

LocalBox chunked_box(
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

std::vector<int64_t> lengths(const std::vector<RowRanges>& ranges) {
  std::vector<int64_t> sizes;
  for (const auto& rows : ranges) {
    sizes.push_back(0);
    for (const auto& range : rows) {
      sizes.back() += range.length;
    }
  }
  return sizes;
}

} // namespace

bool given_rows_fit(
    const Placements& placements,
    const std::vector<int64_t>& mesh_shape,
    c10::IntArrayRef global_sizes) {
  return !find_misfit(placements, mesh_shape, global_sizes);
}

DTensorSpec fitted(const DTensorSpec& spec, c10::IntArrayRef global_sizes) {
  if (spec.is_chunked()) {
    return spec;
  }
  check_rows(spec, global_sizes);
  Placements placements = spec.placements();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    auto& placement = placements[i];
    const bool chunked = placement.has_shard_sizes()
                             ? is_chunk_rule(placement.shard_sizes())
                             : placement.split_factor() == 1;
    if (placement.is_shard() && (chunked || spec.mesh().size(i) == 1)) {
      placement = Shard(placement.tensor_dim());
    }
  }
  return spec.with(placements);
}

std::vector<RowRanges> local_ranges_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate) {
  if (!spec.is_chunked()) {
    check_rows(spec, global_sizes);
  }
  std::vector<RowRanges> ranges;
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    ranges.push_back(rows_at(
        dim_shards(spec, static_cast<int64_t>(d)),
        global_sizes[d],
        coordinate));
  }
  return ranges;
}

std::vector<RowRanges> local_ranges(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes) {
  return local_ranges_at(spec, global_sizes, own_coordinate(spec));
}

std::vector<int64_t> local_sizes_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate) {
  return spec.is_chunked()
             ? chunked_box(spec, global_sizes, coordinate).sizes
             : lengths(local_ranges_at(spec, global_sizes, coordinate));
}

std::vector<int64_t> local_sizes(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes) {
  return local_sizes_at(spec, global_sizes, own_coordinate(spec));
}

bool has_local_boxes(const DTensorSpec& spec, c10::IntArrayRef global_sizes) {
  if (spec.is_chunked()) {
    return true;
  }
  std::vector<int64_t> coordinate(spec.mesh_ndim(), 0);
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    const auto cuts = dim_shards(spec, static_cast<int64_t>(d));
    const bool interleaves = std::ranges::any_of(
        cuts, [](const DimShard& cut) { return cut.split_factor > 1; });
    if (interleaves &&
        has_ranges_at_any(cuts, global_sizes[d], 0, coordinate)) {
      return false;
    }
  }
  return true;
}

LocalBox local_box_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate) {
  if (spec.is_chunked()) {
    return chunked_box(spec, global_sizes, coordinate);
  }
  const auto ranges = local_ranges_at(spec, global_sizes, coordinate);
  WEFT_CHECK(
      has_local_boxes(spec, global_sizes),
      "local_box",
      mesh::ErrorContext{spec.mesh().describe_rank()},
      "the local shards of a tensor of shape ",
      global_sizes,
      " under ",
      dtensor::to_string(spec.placements()),
      " are not contiguous blocks, because the rows of a StridedShard are not "
      "adjacent. Use local_ranges(), or redistribute to Shard.");
  LocalBox box;
  for (const auto& rows : ranges) {
    box.offset.push_back(rows[0].begin);
    box.sizes.push_back(rows[0].length);
  }
  return box;
}

LocalBox local_box(const DTensorSpec& spec, c10::IntArrayRef global_sizes) {
  return local_box_at(spec, global_sizes, own_coordinate(spec));
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
  for (const size_t dim : order | std::views::reverse) {
    dense[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
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
