#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "hf/tensor_map.h"

namespace weft::recipes::hub {

using Sizes = std::vector<int64_t>;

/// offset + [0, shape) in every dim of a tensor.
struct Box {
  Sizes offset;
  Sizes shape;
};

/// What two boxes share; none if that is empty.
std::optional<Box> overlap(const Box& a, const Box& b);

/// Where `part` of our tensor, inside of `piece`, begins in Hugging Face's.
Sizes hub_offset(const Piece& piece, const Box& part);

/// The box of Hugging Face's tensor that a piece is.
Box hub_box(const Piece& piece);

/// The box of our tensor that `part` of it, inside of hub_box(), is.
Box our_box(const Piece& piece, const Box& part);

/// `part` of our tensor with the dims that Hugging Face's has, in their order.
/// `tensor` is the box `own` of ours.
at::Tensor hub_view(
    const at::Tensor& tensor,
    const Box& own,
    const Box& part,
    const Piece& piece);

} // namespace weft::recipes::hub
