#include "mesh/communicator/row_reduction.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/error/error.h"
#include "tests/mesh/backends/shm/shm_values.h"

namespace weft::mesh {
namespace {

using test::is_defined;
using test::kReduceOps;
using test::kReducibleDtypes;
using test::random_values;
using test::same_bits;

void reduce_into(
    const at::Tensor& output,
    const std::vector<at::Tensor>& rows,
    ReduceOp op) {
  std::vector<const void*> pointers;
  for (const auto& row : rows) {
    pointers.push_back(row.const_data_ptr());
  }
  reduce_row_pointers(
      output.mutable_data_ptr(),
      pointers.data(),
      static_cast<int64_t>(rows.size()),
      output.numel(),
      output.scalar_type(),
      op);
}

at::Tensor reduce(const std::vector<at::Tensor>& rows, ReduceOp op) {
  auto output = at::zeros_like(rows[0]);
  reduce_into(output, rows, op);
  return output;
}

std::vector<at::Tensor>
random_rows(int64_t rows, int64_t count, at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (int64_t row = 0; row < rows; ++row) {
    result.push_back(random_values(count, dtype, row));
  }
  return result;
}

// A term at a time, in one element's own buffer.
TEST(RowReduction, OneElementAloneHasTheSameBits) {
  constexpr int64_t kCount = 2048 + 37;
  for (const int64_t num_rows : {2, 3, 5}) {
    for (const auto dtype : kReducibleDtypes) {
      const auto rows = random_rows(num_rows, kCount, dtype);
      for (const auto op : kReduceOps) {
        if (!is_defined(dtype, op)) {
          continue;
        }
        const auto together = reduce(rows, op);
        for (int64_t at = 0; at < kCount; at += at < 40 ? 1 : 31) {
          std::vector<at::Tensor> one;
          for (const auto& row : rows) {
            one.push_back(row.narrow(0, at, 1).clone());
          }
          ASSERT_TRUE(same_bits(reduce(one, op), together.narrow(0, at, 1)))
              << dtype << " " << int(op) << " of " << num_rows << " at " << at;
        }
      }
    }
  }
}

// Halves and bfloat16 as the same reduction of floats, rounded once.
TEST(RowReduction, NarrowTypesAreReducedInFloat) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto rows = random_rows(5, 3001, dtype);
    std::vector<at::Tensor> wide;
    for (const auto& row : rows) {
      wide.push_back(row.to(at::kFloat));
    }
    for (const auto op : kReduceOps) {
      EXPECT_TRUE(same_bits(reduce(rows, op), reduce(wide, op).to(dtype)))
          << dtype << " " << int(op);
    }
  }
}

// Every half and every bfloat16 there is, alone and next to zero.
TEST(RowReduction, EveryNarrowNumberIsKept) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto all =
        at::arange(65536, at::kLong).to(at::kUInt16).view(dtype).clone();
    const auto most = reduce({all, all}, ReduceOp::kMax);
    const auto is_number = ~all.isnan();
    EXPECT_TRUE(
        same_bits(most.masked_select(is_number), all.masked_select(is_number)));
    EXPECT_TRUE(most.masked_select(~is_number).isnan().all().item<bool>());
  }
}

TEST(RowReduction, FloatsAreAddedInRowOrder) {
  const auto rows = random_rows(5, 2051, at::kFloat);
  auto expected = rows[0].clone();
  for (size_t row = 1; row < rows.size(); ++row) {
    expected += rows[row];
  }
  EXPECT_TRUE(same_bits(reduce(rows, ReduceOp::kSum), expected));
  EXPECT_TRUE(same_bits(reduce(rows, ReduceOp::kAvg), expected / 5));
}

// Within what two roundings of each part may cost of a division by 3.
TEST(RowReduction, ComplexAveragesDivideBothParts) {
  const auto rows = random_rows(3, 1001, at::kComplexFloat);
  const auto mean = at::view_as_real(reduce(rows, ReduceOp::kAvg));
  const auto sum = at::view_as_real(reduce(rows, ReduceOp::kSum));
  EXPECT_TRUE(same_bits(mean, sum / 3));
}

TEST(RowReduction, WhatIsNoNumberStaysNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : kReduceOps) {
      for (size_t row = 0; row < 3; ++row) {
        auto rows = random_rows(3, 37, dtype);
        rows[row].slice(0, 0, 37, 3).fill_(nan);
        const auto result = reduce(rows, op);
        EXPECT_TRUE(at::equal(result.isnan(), rows[row].isnan()))
            << dtype << " " << int(op) << " in row " << row;
      }
    }
  }
}

TEST(RowReduction, BooleansSumAsOrAndMultiplyAsAnd) {
  const auto a = torch::tensor({false, false, true, true});
  const auto b = torch::tensor({false, true, false, true});
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
    EXPECT_TRUE(at::equal(reduce({a, b}, op), a.logical_or(b)));
  }
  for (const auto op : {ReduceOp::kProduct, ReduceOp::kMin}) {
    EXPECT_TRUE(at::equal(reduce({a, b}, op), a.logical_and(b)));
  }
}

TEST(RowReduction, IntegersWrapAround) {
  for (const auto dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    const auto rows = random_rows(3, 301, dtype);
    EXPECT_TRUE(
        at::equal(reduce(rows, ReduceOp::kSum), rows[0] + rows[1] + rows[2]));
    EXPECT_TRUE(at::equal(
        reduce(rows, ReduceOp::kProduct), rows[0] * rows[1] * rows[2]));
  }
}

TEST(RowReduction, TheOutputMayBeAnyOfTheRows) {
  for (const auto dtype : kReducibleDtypes) {
    for (const auto op : kReduceOps) {
      for (const size_t num_rows : {1, 2, 3}) {
        for (size_t own = 0; is_defined(dtype, op) && own < num_rows; ++own) {
          auto rows = random_rows(static_cast<int64_t>(num_rows), 5001, dtype);
          const auto expected = reduce(rows, op);
          reduce_into(rows[own], rows, op);
          EXPECT_TRUE(same_bits(rows[own], expected))
              << dtype << " " << int(op) << " into row " << own << " of "
              << num_rows;
        }
      }
    }
  }
}

TEST(RowReduction, OtherDtypesAreRefused) {
  const auto row = at::zeros({4}, at::kByte);
  const void* rows[] = {row.const_data_ptr(), row.const_data_ptr()};
  auto output = at::zeros({4}, at::kByte);
  EXPECT_THROW(
      reduce_row_pointers(
          output.mutable_data_ptr(),
          rows,
          2,
          4,
          at::kFloat8_e4m3fn,
          ReduceOp::kSum),
      c10::ValueError);
}

} // namespace
} // namespace weft::mesh
