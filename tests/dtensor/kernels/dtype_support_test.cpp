#include "dtensor/kernels/dtype_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace weft::dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(c10::Device device, at::ScalarType dtype) {
  try {
    check_dtype(device, dtype);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return {};
}

TEST(DtypeSupport, WhatACpuTrainsIn) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    EXPECT_EQ(refusal(at::kCPU, dtype), "") << dtype;
  }
}

TEST(DtypeSupport, WhatTheDeviceLacksIsRefusedWithTheReason) {
  EXPECT_THAT(
      refusal(at::kCPU, at::kFloat8_e4m3fn),
      AllOf(
          HasSubstr("Float8_e4m3fn cannot be trained in on cpu"),
          HasSubstr("matrix product: "),
          HasSubstr("Use float32 or bfloat16"),
          Not(HasSubstr("\n"))));
  EXPECT_THAT(
      refusal(at::kCPU, at::kLong),
      HasSubstr("expected a floating-point dtype to train in"));
}

TEST(DtypeSupport, ADeviceThatIsNotThereIsRefused) {
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(
        refusal(at::kCUDA, at::kFloat), HasSubstr("cannot be trained in on"));
  }
}

TEST(DtypeSupport, RunsWhereGradientsAreOff) {
  const at::NoGradGuard no_grad;
  EXPECT_EQ(refusal(at::kCPU, at::kFloat), "");
  EXPECT_FALSE(at::GradMode::is_enabled());
}

} // namespace
} // namespace weft::dtensor
