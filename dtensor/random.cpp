#include "dtensor/random.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include "dtensor/random_arithmetic.h"
#include "mesh/device_plugin.h"

namespace weft::dtensor {
namespace {

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

// Vector body and tail take the same path, so an element's value never depends
// on its neighbours.
template <class Generate>
void fill_on_cpu(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    const mesh::RandomFill& fill,
    const Generate& generate) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, local.scalar_type(), "fill_random", [&] {
        auto* data = local.mutable_data_ptr<scalar_t>();
        for_each_row(
            box, global_sizes, [&](int64_t at, int64_t global, int64_t length) {
              int64_t done = 0;
              while (done < length) {
                const auto block = generate(
                    fill.seed,
                    fill.stream,
                    static_cast<uint64_t>((global + done) / 4));
                for (int64_t lane = (global + done) % 4;
                     lane < 4 && done < length;
                     ++lane, ++done) {
                  data[at + done] = static_cast<scalar_t>(
                      placed(block.numbers[lane], fill.shift, fill.scale));
                }
              }
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
  } else if (fill.is_normal) {
    fill_on_cpu(local, box, global_sizes, fill, [](auto... counter) {
      return normal_block(counter...);
    });
  } else {
    fill_on_cpu(local, box, global_sizes, fill, [](auto... counter) {
      return uniform_block(counter...);
    });
  }
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

} // namespace weft::dtensor
