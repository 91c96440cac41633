#include "checkpoint/tiling.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/limits.h"
#include "checkpoint/text.h"

namespace weft::checkpoint {
namespace {

// Note [Tiling by corners]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Let f(x) be the number of boxes that hold element x. Give each corner of a
// box a sign: + where an even number of its coordinates are ends, - where it is
// odd. Then f(x) is the sum of the signs of all corners that are nowhere beyond
// x, and the corners with their sums are determined by f. So boxes tile the
// whole if and only if their corners, added up, are the whole's corners: all
// others cancel. That takes 2^dims steps a box, in any number of boxes, where
// comparing boxes in pairs would be quadratic. Dims along which no box is cut
// are left out.
//
// The first corner, in row-major order, where the sums differ is the first
// element that is not held exactly once: all corners that are nowhere beyond it
// come no later in that order. The difference there is f minus 1.
struct Corner {
  std::vector<int64_t> at;
  int64_t sign;
};

struct Box {
  const std::vector<int64_t>& offset;
  const std::vector<int64_t>& shape;
};

std::vector<size_t> cut_dims(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::any_of(chunks, [&](const Chunk& chunk) {
          return chunk.shape[d] != shape[d];
        })) {
      dims.push_back(d);
    }
  }
  return dims;
}

void add_corners(
    const Box& box,
    const std::vector<size_t>& dims,
    int64_t sign,
    std::vector<Corner>& corners) {
  for (size_t ends = 0; ends < size_t{1} << dims.size(); ++ends) {
    Corner corner{std::vector<int64_t>(dims.size()), sign};
    for (size_t i = 0; i < dims.size(); ++i) {
      const bool end = ((ends >> i) & 1U) != 0;
      corner.at[i] = box.offset[dims[i]] + (end ? box.shape[dims[i]] : 0);
      corner.sign = end ? -corner.sign : corner.sign;
    }
    corners.push_back(std::move(corner));
  }
}

} // namespace

std::optional<std::string> tiling_fault(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks) {
  const auto dims = cut_dims(shape, chunks);
  const auto most = static_cast<size_t>(limits::kChunkCorners) >> dims.size();
  if (chunks.size() > most) {
    return fmt::format(
        "{} chunks cut along {} dims; at most {} are allowed",
        chunks.size(),
        dims.size(),
        most);
  }
  std::vector<Corner> corners;
  corners.reserve((chunks.size() + 1) << dims.size());
  const std::vector<int64_t> origin(shape.size(), 0);
  add_corners({origin, shape}, dims, -1, corners);
  for (const auto& chunk : chunks) {
    add_corners({chunk.offset, chunk.shape}, dims, 1, corners);
  }
  std::ranges::sort(corners, {}, &Corner::at);
  for (size_t i = 0; i < corners.size();) {
    int64_t sum = 0;
    size_t next = i;
    for (; next < corners.size() && corners[next].at == corners[i].at; ++next) {
      sum += corners[next].sign;
    }
    if (sum != 0) {
      std::vector<int64_t> element(shape.size(), 0);
      for (size_t k = 0; k < dims.size(); ++k) {
        element[dims[k]] = corners[i].at[k];
      }
      return fmt::format(
          "element {} of {} is in {} chunks",
          to_text(element),
          to_text(shape),
          sum + 1);
    }
    i = next;
  }
  return std::nullopt;
}

std::optional<std::string> range_fault(
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
