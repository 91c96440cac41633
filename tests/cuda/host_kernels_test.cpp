// The kernels, compiled for the CPU: their indices and arithmetic, without a
// GPU. gpu_test.cpp asks a GPU for the same.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cuda/kernels.h"
#include "dtensor/random/random.h"
#include "mesh/communicator/reduction.h"

namespace weft::cuda {
namespace {

Dtype kernel_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Dtype::kDouble;
    case at::kHalf:
      return Dtype::kHalf;
    case at::kBFloat16:
      return Dtype::kBFloat16;
    default:
      return Dtype::kFloat;
  }
}

struct Cut {
  std::vector<int64_t> sizes;
  std::vector<int64_t> offset;
  std::vector<int64_t> whole;
};

Box box_of(const Cut& cut) {
  Box box;
  box.ndim = static_cast<int>(cut.sizes.size());
  int64_t stride = 1;
  for (int d = box.ndim - 1; d >= 0; --d) {
    box.sizes[d] = cut.sizes[d];
    box.offset[d] = cut.offset[d];
    box.strides[d] = stride;
    stride *= cut.whole[d];
  }
  return box;
}

TEST(HostKernels, FillsAnyCutOfAnyTensorLikeTheCpu) {
  const std::vector<Cut> cuts{
      {{}, {}, {}},
      {{1}, {0}, {1}},
      {{7}, {3}, {11}},
      {{64}, {64}, {256}},
      {{3, 5}, {0, 0}, {3, 5}},
      {{3, 5}, {2, 6}, {9, 13}},
      {{2, 3, 7}, {1, 0, 5}, {4, 3, 12}},
      {{2, 1, 2, 3, 1, 2}, {1, 0, 1, 0, 2, 0}, {3, 2, 3, 3, 3, 3}},
      {{0, 5}, {4, 0}, {4, 5}},
      {{4, 0}, {0, 3}, {4, 3}},
  };
  const dtensor::RandomKey key{
      .seed = 0x123456789ABCDEFULL, .stream = 0xFEDCBA9876543210ULL};
  for (const auto& cut : cuts) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const bool is_normal : {false, true}) {
        const auto expected = at::empty(cut.sizes, dtype);
        const auto actual = at::full(cut.sizes, 99.0, dtype);
        const dtensor::LocalBox box{cut.offset, cut.sizes};
        if (is_normal) {
          dtensor::fill_normal(expected, box, cut.whole, key, 0.25, 0.02);
        } else {
          dtensor::fill_uniform(expected, box, cut.whole, key, -0.3, 0.7);
        }
        Numbers numbers{.seed = key.seed, .stream = key.stream};
        numbers.is_normal = is_normal;
        numbers.shift = is_normal ? 0.25 : -0.3;
        numbers.scale = is_normal ? 0.02 : 0.7 - -0.3;
        ASSERT_EQ(
            fill_random(
                actual.mutable_data_ptr(),
                kernel_dtype(dtype),
                box_of(cut),
                numbers,
                nullptr),
            cudaSuccess);
        EXPECT_TRUE(at::equal(actual, expected))
            << c10::IntArrayRef(cut.sizes) << " " << dtype << " " << is_normal;
      }
    }
  }
}

TEST(HostKernels, SumsRowsInTheCpusOrder) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t rows : {1, 2, 3, 8}) {
      for (const int64_t count : {0, 1, 257}) {
        const auto parts = at::arange(rows * count, at::kDouble)
                               .mul(0.37)
                               .sin()
                               .mul(100)
                               .to(dtype)
                               .view({rows, count});
        for (const bool average : {false, true}) {
          const auto expected = at::empty({count}, dtype);
          const auto actual = at::empty({count}, dtype);
          mesh::reduce_rows(
              expected,
              parts,
              average ? mesh::ReduceOp::kAvg : mesh::ReduceOp::kSum);
          ASSERT_EQ(
              sum_rows(
                  actual.mutable_data_ptr(),
                  parts.const_data_ptr(),
                  kernel_dtype(dtype),
                  rows,
                  count,
                  average,
                  nullptr),
              cudaSuccess);
          EXPECT_TRUE(at::equal(actual, expected))
              << dtype << " " << rows << " " << count << " " << average;
        }
      }
    }
  }
}

} // namespace
} // namespace weft::cuda
