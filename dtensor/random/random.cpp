#include "dtensor/random/random.h"

#include <algorithm>
#include <array>

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include "base/fnv.h"
#include "dtensor/random/random_arithmetic.h"
#include "dtensor/random/random_blocks.h"
#include "mesh/device/device_plugin.h"

namespace weft::dtensor {
namespace {

// Calls row(local_offset, global_index, length) for each run of elements that
// are adjacent in both the box and the full tensor.
template <class Row>
void for_each_row(
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    const Row& row) {
  const size_t ndim = box.sizes.size();
  if (ndim == 0) {
    row(0, 0, 1);
    return;
  }
  const auto strides = row_major_strides(global_sizes);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < ndim; ++d) {
    rows *= box.sizes[d];
  }
  const int64_t length = box.sizes[ndim - 1];
  std::vector<int64_t> index(ndim, 0);
  for (int64_t r = 0; r < rows && length > 0; ++r) {
    int64_t global = 0;
    for (size_t d = 0; d < ndim; ++d) {
      global += (index[d] + box.offset[d]) * strides[d];
    }
    row(r * length, global, length);
    for (size_t d = ndim - 1; d-- > 0;) {
      if (++index[d] < box.sizes[d]) {
        break;
      }
      index[d] = 0;
    }
  }
}

// A function that computes `blocks` blocks of numbers from block `first` on.
template <class T>
struct BlockMaker {
  void (*make)(uint64_t seed, uint64_t stream, uint64_t first, T* numbers);
  int64_t blocks;
};

template <auto make_block, auto numbers, class T>
void one_block(uint64_t seed, uint64_t stream, uint64_t at, T* out) {
  const auto block = make_block(seed, stream, at);
  std::ranges::copy(block.*numbers, out);
}

// Returns true if blocks should be computed one at a time: short rows that are
// far apart need few numbers from many blocks.
bool wants_single_blocks(const LocalBox& box, c10::IntArrayRef global_sizes) {
  const int64_t row = box.sizes.empty() ? 1 : box.sizes.back();
  const int64_t width = global_sizes.empty() ? 1 : global_sizes.back();
  return 4 * row < std::min(width, 4 * kBlocksAtOnce);
}

BlockMaker<float> maker_of_floats(bool normal, bool single) {
  constexpr auto kNumbers = &NumberBlock::numbers;
  if (single) {
    return {
        normal ? one_block<normal_block, kNumbers, float>
               : one_block<uniform_block, kNumbers, float>,
        1};
  }
  return {normal ? normal_blocks : uniform_blocks, kBlocksAtOnce};
}

BlockMaker<uint32_t> maker_of_words(bool single) {
  if (single) {
    return {one_block<philox, &PhiloxBlock::words, uint32_t>, 1};
  }
  return {word_blocks, kBlocksAtOnce};
}

// Fills elements from blocks of random numbers. Vector body and tail take the
// same path, so an element's value never depends on its neighbors.
template <class Number>
class Filler {
 public:
  Filler(RandomKey key, const BlockMaker<Number>& maker)
      : key_(key), maker_(maker) {}

  // Fills the elements [global, global + length) of the full tensor.
  template <class T, class Convert>
  void fill(T* data, int64_t global, int64_t length, const Convert& convert) {
    while (length > 0) {
      const Number* numbers = numbers_from(global);
      const int64_t count = std::min(length, left_);
      for (int64_t i = 0; i < count; ++i) {
        data[i] = static_cast<T>(convert(numbers[i]));
      }
      data += count;
      global += count;
      length -= count;
    }
  }

 private:
  // Returns the numbers from element `global` on, and sets left_ to their
  // count. Short rows reuse the blocks that were computed for the row before.
  const Number* numbers_from(int64_t global) {
    const int64_t count = 4 * maker_.blocks;
    if (begin_ < 0 || global < begin_ || global >= begin_ + count) {
      begin_ = global / 4 * 4;
      maker_.make(
          key_.seed,
          key_.stream,
          static_cast<uint64_t>(begin_ / 4),
          numbers_.data());
    }
    left_ = begin_ + count - global;
    return numbers_.data() + (global - begin_);
  }

  RandomKey key_;
  BlockMaker<Number> maker_;
  std::array<Number, 4 * kBlocksAtOnce> numbers_;
  int64_t begin_ = -1;
  int64_t left_ = 0;
};

void fill_on_cpu(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    const mesh::RandomFill& fill) {
  Filler<float> filler(
      {fill.seed, fill.stream},
      maker_of_floats(fill.is_normal, wants_single_blocks(box, global_sizes)));
  const auto convert = [&](float number) {
    return placed(number, fill.shift, fill.scale);
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, local.scalar_type(), "fill_random", [&] {
        auto* data = local.mutable_data_ptr<scalar_t>();
        for_each_row(
            box, global_sizes, [&](int64_t at, int64_t global, int64_t length) {
              filler.fill(data + at, global, length, convert);
            });
      });
}

void fill_random(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    const mesh::RandomFill& fill) {
  if (local.is_cuda()) {
    if (!mesh::cuda_plugin().fill_random(local, fill)) {
      const auto staged =
          at::empty(local.sizes(), local.options().device(at::kCPU));
      fill_random(staged, box, global_sizes, fill);
      local.copy_(staged);
    }
  } else {
    fill_on_cpu(local, box, global_sizes, fill);
  }
}

} // namespace

uint64_t stream_of(std::string_view name) {
  return base::fnv1a(name);
}

void fill_uniform(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double from,
    double to) {
  fill_random(
      local,
      box,
      global_sizes,
      {.offset = box.offset,
       .global_sizes = global_sizes,
       .seed = key.seed,
       .stream = key.stream,
       .is_normal = false,
       .shift = from,
       .scale = to - from});
}

void fill_normal(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double mean,
    double std) {
  fill_random(
      local,
      box,
      global_sizes,
      {.offset = box.offset,
       .global_sizes = global_sizes,
       .seed = key.seed,
       .stream = key.stream,
       .is_normal = true,
       .shift = mean,
       .scale = std});
}

void fill_integers(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    int64_t from,
    uint64_t range) {
  Filler<uint32_t> filler(
      key, maker_of_words(wants_single_blocks(box, global_sizes)));
  const auto convert = [&](uint32_t word) {
    return integer_of(word, from, range);
  };
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf,
      at::kBFloat16,
      at::kBool,
      local.scalar_type(),
      "fill_integers",
      [&] {
        auto* data = local.mutable_data_ptr<scalar_t>();
        for_each_row(
            box, global_sizes, [&](int64_t at, int64_t global, int64_t length) {
              filler.fill(data + at, global, length, convert);
            });
      });
}

} // namespace weft::dtensor
