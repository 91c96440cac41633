#include "dtensor/spec/dim_shards.h"

#include <algorithm>

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

namespace {

// Appends rows, which must be behind all rows in `ranges`.
void append(RowRanges& ranges, int64_t begin, int64_t length) {
  if (length == 0) {
    return;
  }
  if (!ranges.empty() && ranges.back().length == 0) {
    ranges.pop_back();
  }
  if (!ranges.empty() && ranges.back().begin + ranges.back().length == begin) {
    ranges.back().length += length;
  } else {
    ranges.push_back({begin, length});
  }
}

// Returns the first row of rank `index`. Each part of the shard must be one
// range.
int64_t cut_begin(const DimShard& cut, int64_t size, int64_t index) {
  if (cut.sizes.empty()) {
    return shard_range(size, cut.shards, index).begin;
  }
  int64_t begin = 0;
  for (int64_t r = 0; r < index; ++r) {
    begin += cut.sizes[r];
  }
  return begin;
}

// Returns the rows of `outer` at the positions `inner`.
RowRanges select(const RowRanges& outer, const RowRanges& inner) {
  RowRanges selected;
  auto from = outer.begin();
  int64_t passed = 0;
  for (const auto& range : inner) {
    int64_t position = range.begin;
    int64_t left = range.length;
    while (left > 0) {
      while (position >= passed + from->length) {
        passed += from->length;
        ++from;
      }
      const int64_t skipped = position - passed;
      const int64_t taken = std::min(left, from->length - skipped);
      append(selected, from->begin + skipped, taken);
      position += taken;
      left -= taken;
    }
  }
  return selected;
}

} // namespace

// Note [Order of shards]
// ~~~~~~~~~~~~~~~~~~~~~~
// Mesh dims shard a tensor dim in mesh order: each one shards what the ones
// before it left. A StridedShard puts its mesh dim behind later ones. Its split
// factor is the number of parts that these have already made. With the mesh
// dims a and b, [_S(0, b), S(0)] means that b shards first and a shards what b
// left. The order is built from the last mesh dim to the first. Each mesh dim
// goes to the front of the order, or as far behind others as its split factor
// is divisible by their numbers of ranks. A StridedShard whose factor is used
// up by this is an ordinary shard of any number of rows: every rank holds one
// range. A remaining factor stands for chunks that no mesh dim made: every rank
// holds a part of each chunk.
//
// So the meaning of a shard depends only on the shards before it in the order.
// The last shard can be removed, or another one added behind it, without
// changing the others. Redistributions consist of such steps.
DimShards dim_shards(
    const Placements& placements,
    c10::IntArrayRef mesh_shape,
    int64_t tensor_dim,
    bool all_sizes) {
  DimShards order;
  for (size_t i = placements.size(); i-- > 0;) {
    const auto& placement = placements[i];
    const int64_t shards = mesh_shape[i];
    if (!placement.is_shard(tensor_dim) ||
        (shards == 1 && !(all_sizes && placement.has_shard_sizes()))) {
      continue;
    }
    DimShard cut{
        static_cast<int64_t>(i),
        shards,
        placement.split_factor(),
        placement.shard_sizes()};
    auto behind = order.begin();
    for (auto other = behind;
         other != order.end() &&
         cut.split_factor % (other->shards * other->split_factor) == 0;
         ++other) {
      if (other->shards > 1) {
        cut.split_factor /= other->shards;
        behind = other + 1;
      }
    }
    order.insert(behind, std::move(cut));
  }
  return order;
}

int64_t shard_length(const DimShard& cut, int64_t size, int64_t index) {
  if (!cut.sizes.empty()) {
    return cut.sizes[index];
  }
  if (cut.split_factor == 1) {
    return shard_range(size, cut.shards, index).length;
  }
  const int64_t chunk = shard_range(size, cut.split_factor, 0).length;
  if (chunk == 0) {
    return 0;
  }
  return size / chunk * shard_range(chunk, cut.shards, index).length +
         shard_range(size % chunk, cut.shards, index).length;
}

RowRanges shard_rows(const DimShard& cut, int64_t size, int64_t index) {
  if (cut.split_factor == 1) {
    return {{cut_begin(cut, size, index), shard_length(cut, size, index)}};
  }
  RowRanges ranges{{0, 0}};
  const int64_t chunks = std::min(cut.split_factor, size);
  for (int64_t c = 0; c < chunks; ++c) {
    const auto chunk = shard_range(size, cut.split_factor, c);
    const auto part = shard_range(chunk.length, cut.shards, index);
    append(ranges, chunk.begin + part.begin, part.length);
  }
  return ranges;
}

RowRanges
rows_at(const DimShards& cuts, int64_t size, c10::IntArrayRef coordinate) {
  RowRanges rows{{0, size}};
  int64_t left = size;
  for (const auto& cut : cuts) {
    const int64_t index = coordinate[cut.mesh_dim];
    const auto inner = shard_rows(cut, left, index);
    left = shard_length(cut, left, index);
    if (rows.size() == 1 && inner.size() == 1) {
      rows = {{rows[0].begin + inner[0].begin, left}};
    } else if (left > 0) {
      rows = select(rows, inner);
    } else {
      rows = {{rows[0].begin, 0}};
    }
  }
  return rows;
}

} // namespace weft::dtensor
