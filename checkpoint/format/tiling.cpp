#include "checkpoint/format/tiling.h"

#include <algorithm>
#include <bit>
#include <ranges>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"

namespace weft::checkpoint {
namespace {

// Note [Tiling by corners]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Let f(x) be the number of boxes that contain element x. Each corner of a box
// gets a sign: + if an even number of its coordinates are ends, - if the number
// is odd. Then f(x) is the sum of the signs of all corners that are not beyond
// x in any dim, and f determines the corners with their sums. So boxes tile the
// full tensor if and only if the sum of their corners equals the corners of the
// full tensor: all others cancel. This takes 2^dims steps per box, while
// comparing boxes in pairs would be quadratic. Dims along which no box is split
// are left out.
//
// The first corner, in row-major order, whose sums differ is the first element
// that is not in exactly one box, because all corners that are not beyond it in
// any dim come no later in that order. The difference there is f minus 1.
//
// There can be millions of corners, so a corner is one integer: along each dim
// it contains the index of a coordinate at which a box begins or ends.
using Corner = unsigned __int128;

struct Box {
  const std::vector<int64_t>& offset;
  const std::vector<int64_t>& shape;
};

struct ShardedDim {
  size_t dim;
  std::vector<int64_t> coordinates; // ascending and unique
  int bits = 0;

  Corner index_of(int64_t coordinate) const {
    const auto found = std::ranges::lower_bound(coordinates, coordinate);
    return static_cast<Corner>(found - coordinates.begin());
  }
};

std::vector<ShardedDim> sharded_dims(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks) {
  std::vector<ShardedDim> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::any_of(chunks, [&](const Chunk& chunk) {
          return chunk.shape[d] != shape[d];
        })) {
      dims.push_back({d, {}});
    }
  }
  return dims;
}

// Fills in the coordinates. Returns the number of bits of a corner.
int number_coordinates(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks,
    std::vector<ShardedDim>& dims) {
  int bits = 0;
  for (auto& [d, coordinates, own_bits] : dims) {
    coordinates = {0, shape[d]};
    for (const auto& chunk : chunks) {
      coordinates.push_back(chunk.offset[d]);
      coordinates.push_back(chunk.offset[d] + chunk.shape[d]);
    }
    std::ranges::sort(coordinates);
    coordinates.erase(
        std::unique(coordinates.begin(), coordinates.end()), coordinates.end());
    own_bits = std::bit_width(coordinates.size() - 1);
    bits += own_bits;
  }
  return bits;
}

// Adds the corners with an even number of ends to `even`, the others to `odd`.
void add_corners(
    const Box& box,
    const std::vector<ShardedDim>& dims,
    std::vector<Corner>& even,
    std::vector<Corner>& odd) {
  for (size_t ends = 0; ends < size_t{1} << dims.size(); ++ends) {
    Corner corner = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto d = dims[i].dim;
      const bool end = ((ends >> i) & 1U) != 0;
      corner = corner << dims[i].bits |
               dims[i].index_of(box.offset[d] + (end ? box.shape[d] : 0));
    }
    (std::popcount(ends) % 2 == 0 ? even : odd).push_back(corner);
  }
}

std::vector<int64_t> element_at(
    Corner corner,
    const std::vector<ShardedDim>& dims,
    size_t dim_count) {
  std::vector<int64_t> element(dim_count, 0);
  for (const auto& dim : dims | std::views::reverse) {
    const auto mask = (Corner{1} << dim.bits) - 1;
    element[dim.dim] = dim.coordinates[static_cast<size_t>(corner & mask)];
    corner >>= dim.bits;
  }
  return element;
}

// Returns the first corner that is more frequent in one of the sorted lists.
std::optional<Corner> first_difference(
    const std::vector<Corner>& a,
    const std::vector<Corner>& b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  if (in_a == a.end() || in_b == b.end()) {
    return in_a != a.end()   ? std::optional(*in_a)
           : in_b != b.end() ? std::optional(*in_b)
                             : std::nullopt;
  }
  return std::min(*in_a, *in_b);
}

int64_t count_of(const std::vector<Corner>& sorted, Corner corner) {
  const auto [begin, end] =
      std::equal_range(sorted.begin(), sorted.end(), corner);
  return end - begin;
}

} // namespace

std::optional<std::string> tiling_error(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks) {
  auto dims = sharded_dims(shape, chunks);
  const auto most = static_cast<size_t>(limits::kChunkCorners) >> dims.size();
  if (chunks.size() > most) {
    return fmt::format(
        "{} chunks split along {} dims; at most {} are allowed",
        chunks.size(),
        dims.size(),
        most);
  }
  constexpr int kCornerBits = 128;
  const auto bits = number_coordinates(shape, chunks, dims);
  TORCH_INTERNAL_ASSERT(bits <= kCornerBits, "corners of ", bits, " bits");
  std::vector<Corner> plus;
  std::vector<Corner> minus;
  plus.reserve(((chunks.size() + 1) << dims.size()) / 2 + 1);
  minus.reserve(plus.capacity());
  const std::vector<int64_t> origin(shape.size(), 0);
  add_corners({origin, shape}, dims, minus, plus);
  for (const auto& chunk : chunks) {
    add_corners({chunk.offset, chunk.shape}, dims, plus, minus);
  }
  std::ranges::sort(plus);
  std::ranges::sort(minus);
  if (const auto corner = first_difference(plus, minus)) {
    return fmt::format(
        "element {} of {} is in {} chunks",
        to_text(element_at(*corner, dims, shape.size())),
        to_text(shape),
        count_of(plus, *corner) - count_of(minus, *corner) + 1);
  }
  return std::nullopt;
}

std::optional<std::string> range_error(
    const FileRecord& file,
    std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::ranges::sort(ranges);
  int64_t position = file.header_bytes;
  for (const auto& [begin, end] : ranges) {
    if (begin != position) {
      return fmt::format(
          "byte {} belongs to {} chunk",
          std::min(begin, position),
          begin > position ? "no" : "more than one");
    }
    position = end;
  }
  if (position != file.bytes) {
    return fmt::format(
        "byte {} belongs to no chunk", std::min(position, file.bytes));
  }
  return std::nullopt;
}

} // namespace weft::checkpoint
