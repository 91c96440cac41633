#include "hf/box.h"

#include <algorithm>

namespace weft::hf {

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box shared;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const auto begin = std::max(a.offset[d], b.offset[d]);
    const auto end =
        std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) {
      return std::nullopt;
    }
    shared.offset.push_back(begin);
    shared.shape.push_back(end - begin);
  }
  return shared;
}

Sizes hub_offset(const Piece& piece, const Box& part) {
  const auto hub_dims = piece.hub_offset.size();
  const auto leading = piece.offset.size() - hub_dims;
  Sizes offset;
  for (size_t d = leading; d < piece.offset.size(); ++d) {
    offset.push_back(part.offset[d] - piece.offset[d]);
  }
  if (piece.transposed) {
    std::swap(offset[0], offset[1]);
  }
  for (size_t d = 0; d < hub_dims; ++d) {
    offset[d] += piece.hub_offset[d];
  }
  return offset;
}

Box hub_box(const Piece& piece) {
  const auto dims = static_cast<std::ptrdiff_t>(piece.hub_offset.size());
  Box box{piece.hub_offset, Sizes(piece.shape.end() - dims, piece.shape.end())};
  if (piece.transposed) {
    std::swap(box.shape[0], box.shape[1]);
  }
  return box;
}

Box our_box(const Piece& piece, const Box& part) {
  auto offset = part.offset;
  auto shape = part.shape;
  for (size_t d = 0; d < offset.size(); ++d) {
    offset[d] -= piece.hub_offset[d];
  }
  if (piece.transposed) {
    std::swap(offset[0], offset[1]);
    std::swap(shape[0], shape[1]);
  }
  Box box{piece.offset, Sizes(piece.shape.size(), 1)};
  const auto leading = piece.shape.size() - shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    box.offset[leading + d] += offset[d];
    box.shape[leading + d] = shape[d];
  }
  return box;
}

at::Tensor hub_view(
    const at::Tensor& tensor,
    const Box& own,
    const Box& part,
    const Piece& piece) {
  auto view = tensor;
  for (size_t d = 0; d < part.shape.size(); ++d) {
    view = view.narrow(
        static_cast<int64_t>(d), part.offset[d] - own.offset[d], part.shape[d]);
  }
  while (view.dim() > std::ssize(piece.hub_offset)) {
    view = view.select(0, 0);
  }
  return piece.transposed ? view.t() : view;
}

} // namespace weft::hf
