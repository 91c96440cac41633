// The kernels, compiled for the CPU: their indices and arithmetic, without a
// GPU. gpu_test.cpp asks a GPU for the same.

#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cuda/kernels.h"
#include "dtensor/fused/fused_ops.h"
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

// A few rounding steps of the dtype: both sides round once, after an
// exponential of their own.
void expect_rounded_alike(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const std::string& what) {
  const auto dtype = expected.scalar_type();
  const double step = dtype == at::kDouble     ? 1e-14
                      : dtype == at::kFloat    ? 1e-6
                      : dtype == at::kBFloat16 ? 8e-3
                                               : 1e-3;
  EXPECT_TRUE(at::allclose(
      actual.to(at::kDouble), expected.to(at::kDouble), step, step))
      << what << " " << dtype;
}

at::Tensor waves(c10::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble)
      .mul(0.7)
      .add(phase)
      .sin()
      .mul(3)
      .to(dtype)
      .view(sizes);
}

TEST(HostKernels, SwigluAndItsGradientsAreTheCpus) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    // Whole packs of 16 bytes; not whole ones; whole ones out of line.
    for (const auto& [count, skipped] :
         {std::pair{0, 0}, {64, 0}, {67, 0}, {64, 1}}) {
      const auto cut = [first = int64_t{skipped},
                        n = int64_t{count}](const at::Tensor& tensor) {
        return tensor.narrow(0, first, n);
      };
      const int64_t all = count + skipped;
      const auto gate = cut(waves({all}, 0.1, dtype)).set_requires_grad(true);
      const auto up = cut(waves({all}, 0.2, dtype)).set_requires_grad(true);
      const auto grad = cut(waves({all}, 0.3, dtype));
      const auto expected = dtensor::swiglu(gate, up);
      const auto expected_grads =
          torch::autograd::grad({expected}, {gate, up}, {grad});
      const auto output = cut(at::full({all}, 99.0, dtype));
      const auto gate_grad = cut(at::full({all}, 99.0, dtype));
      const auto up_grad = cut(at::full({all}, 99.0, dtype));
      const auto kernels = kernel_dtype(dtype);
      ASSERT_EQ(
          swiglu(
              output.mutable_data_ptr(),
              gate.const_data_ptr(),
              up.const_data_ptr(),
              kernels,
              count,
              nullptr),
          cudaSuccess);
      ASSERT_EQ(
          swiglu_backward(
              gate_grad.mutable_data_ptr(),
              up_grad.mutable_data_ptr(),
              grad.const_data_ptr(),
              gate.const_data_ptr(),
              up.const_data_ptr(),
              kernels,
              count,
              nullptr),
          cudaSuccess);
      expect_rounded_alike(output, expected.detach(), "output");
      expect_rounded_alike(gate_grad, expected_grads[0], "gate");
      expect_rounded_alike(up_grad, expected_grads[1], "up");
    }
  }
}

TEST(HostKernels, RotaryEmbeddingIsTheCpus) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t half : {1, 3, 8, 16}) {
      const auto cos = waves({7, 2 * half}, 0.4, dtype).narrow(0, 2, 5);
      const auto sin = waves({7, 2 * half}, 0.5, dtype).narrow(0, 2, 5);
      // By heads and by positions.
      for (const auto& x :
           {waves({2, 3, 5, 2 * half}, 0.6, dtype),
            waves({2, 5, 3, 2 * half}, 0.6, dtype).transpose(1, 2)}) {
        for (const bool transposed : {false, true}) {
          auto input = x.detach().set_requires_grad(true);
          auto expected = dtensor::rotary_embedding(input, cos, sin);
          if (transposed) {
            expected = torch::autograd::grad({expected}, {input}, {x})[0];
          }
          const auto output = at::empty_like(x).fill_(99);
          Rotary call{
              .input = x.const_data_ptr(),
              .cos = cos.const_data_ptr(),
              .sin = sin.const_data_ptr(),
              .output = output.mutable_data_ptr(),
              .batch = x.size(0),
              .heads = x.size(1),
              .length = x.size(2),
              .half = half};
          for (int d = 0; d < 3; ++d) {
            call.input_strides[d] = x.stride(d);
            call.output_strides[d] = output.stride(d);
          }
          call.cos_stride = cos.stride(0);
          call.sin_stride = sin.stride(0);
          call.transposed = transposed;
          ASSERT_EQ(
              rotary_embedding(call, kernel_dtype(dtype), nullptr),
              cudaSuccess);
          expect_rounded_alike(output, expected.detach(), "rotary");
        }
      }
    }
  }
}

// Rows of `columns` classes of 40, from class 10 on; every other row in memory.
struct ClassCase {
  at::ScalarType dtype;
  int64_t columns;
  at::Tensor logits = waves({10, columns}, 0.1, dtype).slice(0, 0, 10, 2);
  // The first and last column, on other ranks before and after, ignored.
  at::Tensor target = at::tensor({10L, 9 + columns, 9L, 10 + columns, -100L});
  ClassRows call{
      .logits = logits.const_data_ptr(),
      .target = target.const_data_ptr<int64_t>(),
      .rows = 5,
      .columns = columns,
      .stride = logits.stride(0),
      .first_class = 10,
      .classes = 40,
      .ignore_index = -100};
  at::ScalarType numbers = dtype == at::kDouble ? at::kDouble : at::kFloat;
};

std::vector<ClassCase> class_cases() {
  std::vector<ClassCase> cases;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t columns : {1, 7, 16, 24}) { // Whole packs, and not.
      cases.push_back({.dtype = dtype, .columns = columns});
    }
  }
  return cases;
}

TEST(HostKernels, ClassStatisticsAreThoseOfTheRows) {
  for (const auto& one : class_cases()) {
    const auto x = one.logits.to(at::kDouble);
    const auto maximum = x.amax(1);
    const auto actual = at::full({3, 5}, 99.0, one.numbers);
    ASSERT_EQ(
        class_statistics(
            actual.mutable_data_ptr(),
            one.call,
            kernel_dtype(one.dtype),
            nullptr),
        cudaSuccess);
    const auto expected = at::stack(
        {maximum,
         (x - maximum.unsqueeze(1)).exp().sum(1),
         at::zeros({5}, at::kDouble)});
    expected[2][0] = x[0][0];
    expected[2][1] = x[1][one.columns - 1];
    EXPECT_TRUE(at::allclose(actual.to(at::kDouble), expected, 1e-6, 1e-6))
        << one.dtype << " " << one.columns << "\n"
        << actual << expected;
  }
}

TEST(HostKernels, RowsOfNothingButInfinitiesHaveExponentialsOfZero) {
  ClassCase one{.dtype = at::kFloat, .columns = 16};
  one.logits.fill_(-std::numeric_limits<float>::infinity());
  one.logits[1][3] = 2;
  const auto actual = at::full({3, 5}, 99.0);
  ASSERT_EQ(
      class_statistics(
          actual.mutable_data_ptr(), one.call, Dtype::kFloat, nullptr),
      cudaSuccess);
  EXPECT_EQ(actual[1].sum().item<float>(), 1) << actual;
  EXPECT_EQ(actual[0][1].item<float>(), 2);
  EXPECT_EQ(
      actual[0][0].item<float>(), -std::numeric_limits<float>::infinity());
}

TEST(HostKernels, ClassGradientIsThatOfTheLossAndOfLogSum) {
  for (const auto& one : class_cases()) {
    const auto x = one.logits.to(at::kDouble).set_requires_grad(true);
    const auto log_sum = at::logsumexp(x, 1);
    const auto picked = at::stack({x[0][0], x[1][one.columns - 1]});
    const auto loss_grad = waves({5}, 0.2, one.numbers);
    const auto log_sum_grad = waves({5}, 0.3, one.numbers);
    const auto d = loss_grad.to(at::kDouble);
    for (const bool has_both : {false, true}) {
      auto total = (log_sum * d).narrow(0, 0, 4).sum() -
                   (picked * d.narrow(0, 0, 2)).sum();
      if (has_both) {
        total = total + (log_sum * log_sum_grad).sum();
      }
      const auto expected =
          torch::autograd::grad({total}, {x}, {}, /*retain_graph=*/true)[0];
      const auto actual = at::full({5, one.columns}, 99.0, one.dtype);
      const auto sums = log_sum.detach().to(one.numbers);
      const ClassGradients gradients{
          .log_sum = sums.const_data_ptr(),
          .loss = loss_grad.const_data_ptr(),
          .loss_stride = 1,
          .of_log_sum = has_both ? log_sum_grad.const_data_ptr() : nullptr};
      ASSERT_EQ(
          class_gradient(
              actual.mutable_data_ptr(),
              one.call,
              gradients,
              kernel_dtype(one.dtype),
              nullptr),
          cudaSuccess);
      expect_rounded_alike(
          actual, expected.to(one.dtype), std::to_string(one.columns));
    }
  }
}

} // namespace
} // namespace weft::cuda
