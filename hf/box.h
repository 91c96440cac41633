#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "hf/tensor_map.h"

namespace weft::hf {

using Sizes = std::vector<int64_t>;

/// The box offset + [0, shape) in every dim of a tensor.
struct Box {
  Sizes offset;
  Sizes shape;
};

/// Returns the intersection of two boxes. Empty if there is none.
std::optional<Box> overlap(const Box& a, const Box& b);

/// Returns the start, in the Hugging Face tensor, of the box `part` of our
/// tensor, which is inside `piece`.
Sizes hub_offset(const Piece& piece, const Box& part);

/// Returns the box of a piece in the Hugging Face tensor.
Box hub_box(const Piece& piece);

/// Returns the box in our tensor of `part`, which is inside hub_box().
Box our_box(const Piece& piece, const Box& part);

/// Returns `part` of our tensor with the dims and order of dims of the Hugging
/// Face tensor. `tensor` is the box `own` of ours.
at::Tensor hub_view(
    const at::Tensor& tensor,
    const Box& own,
    const Box& part,
    const Piece& piece);

} // namespace weft::hf
