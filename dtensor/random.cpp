#include "dtensor/random.h"

#include <array>
#include <cmath>
#include <numbers>

#include <ATen/Dispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>

namespace weft::dtensor {
namespace {

using Block = std::array<float, 4>;

// Four numbers for elements [4 * block, 4 * block + 4). Vector body and tail
// take the same path, so an element's value never depends on its neighbours.
Block uniform_block(RandomKey key, uint64_t block) {
  at::Philox4_32 engine(key.seed, key.stream, block);
  Block numbers;
  for (auto& number : numbers) {
    number = static_cast<float>(engine() >> 8) * 0x1p-24f;
  }
  return numbers;
}

Block normal_block(RandomKey key, uint64_t block) {
  const Block uniform = uniform_block(key, block);
  Block numbers;
  for (size_t i = 0; i < 4; i += 2) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform[i]));
    const float angle = 2.0f * std::numbers::pi_v<float> * uniform[i + 1];
    numbers[i] = radius * std::cos(angle);
    numbers[i + 1] = radius * std::sin(angle);
  }
  return numbers;
}

// Calls row(local_offset, global_index, length) for each run of elements that
// lie side by side in both the box and the whole tensor.
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

template <class Generate>
void fill(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    double offset,
    double scale,
    const Generate& generate) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, local.scalar_type(), "fill_random", [&] {
        auto* data = local.mutable_data_ptr<scalar_t>();
        for_each_row(
            box, global_sizes, [&](int64_t at, int64_t global, int64_t length) {
              int64_t done = 0;
              while (done < length) {
                const auto block = generate((global + done) / 4);
                for (int64_t lane = (global + done) % 4;
                     lane < 4 && done < length;
                     ++lane, ++done) {
                  data[at + done] =
                      static_cast<scalar_t>(offset + scale * block[lane]);
                }
              }
            });
      });
}

} // namespace

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

void fill_uniform(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double from,
    double to) {
  fill(local, box, global_sizes, from, to - from, [&](int64_t block) {
    return uniform_block(key, static_cast<uint64_t>(block));
  });
}

void fill_normal(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double mean,
    double std) {
  fill(local, box, global_sizes, mean, std, [&](int64_t block) {
    return normal_block(key, static_cast<uint64_t>(block));
  });
}

} // namespace weft::dtensor
