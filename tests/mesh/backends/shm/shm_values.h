#pragma once

// What the tests of shared memory have in common: values that any change of
// order or of rounding shows in, and groups of both backends.

#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "mesh/backends/shm/shm_group.h"
#include "mesh/communicator/communicator.h"

namespace weft::test {

inline constexpr std::array kReducibleDtypes{
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kBool,
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64};

inline constexpr std::array kReduceOps{
    mesh::ReduceOp::kSum,
    mesh::ReduceOp::kAvg,
    mesh::ReduceOp::kMin,
    mesh::ReduceOp::kMax,
    mesh::ReduceOp::kProduct};

inline bool is_defined(at::ScalarType dtype, mesh::ReduceOp op) {
  if (op == mesh::ReduceOp::kAvg) {
    return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  }
  return !c10::isComplexType(dtype) ||
         (op != mesh::ReduceOp::kMin && op != mesh::ReduceOp::kMax);
}

/// Random values of `rank`, of many sizes; integers that wrap around.
inline at::Tensor
random_values(int64_t count, at::ScalarType dtype, int64_t rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(1000 + rank));
  if (c10::isComplexType(dtype)) {
    const auto part = dtype == at::kComplexFloat ? at::kFloat : at::kDouble;
    return at::complex(
        random_values(count, part, 2 * rank + 50),
        random_values(count, part, 2 * rank + 51));
  }
  if (c10::isFloatingType(dtype)) {
    const auto x = at::randn({count}, generator, at::kDouble);
    return (x * x * x).to(dtype);
  }
  const auto bits = at::randint(
      std::numeric_limits<int64_t>::min(),
      std::numeric_limits<int64_t>::max(),
      {count},
      generator,
      at::kLong);
  if (dtype == at::kBool) {
    return bits.bitwise_and(3).eq(0);
  }
  return bits.view(dtype).narrow(0, 0, count).clone();
}

/// Returns true if the bits are equal, also for NaNs.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(
                                a.contiguous().const_data_ptr(),
                                b.contiguous().const_data_ptr(),
                                a.nbytes()) == 0);
}

/// Elements of a slot.
inline int64_t slot_elements(at::ScalarType dtype) {
  return static_cast<int64_t>(mesh::kShmSlotBytes / c10::elementSize(dtype));
}

} // namespace weft::test
