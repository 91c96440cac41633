#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/flight_recorder.h"

namespace weft::test {

/// Values in (-1, 1) that depend on nothing but their place and `phase`:
/// torch's default generator is one for all ranks that are threads.
inline at::Tensor
wave(at::IntArrayRef sizes, double phase, at::ScalarType dtype = at::kDouble) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  return at::sin(at::arange(numel, at::kDouble) * 1.7 + phase)
      .view(sizes)
      .to(dtype);
}

/// Gives every parameter its own values.
inline void fill_parameters(torch::nn::Module& module, double phase = 0.3) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(wave(parameter.sizes(), phase) * 0.5);
    phase += 1.0;
  }
}

/// Three linear layers; registered in the order a, b, c and used in that order.
struct Mlp : torch::nn::Module {
  explicit Mlp(at::ScalarType dtype = at::kDouble)
      : a(register_module("a", torch::nn::Linear(6, 8))),
        b(register_module("b", torch::nn::Linear(8, 8))),
        c(register_module("c", torch::nn::Linear(8, 3))) {
    to(dtype);
    fill_parameters(*this);
  }

  at::Tensor forward(const at::Tensor& x) {
    return c(at::tanh(b(at::tanh(a(x)))));
  }

  torch::nn::Linear a, b, c;
};

/// Rows [rank * rows, (rank + 1) * rows) of all ranks' batch.
inline at::Tensor part_of(const at::Tensor& batch, int64_t rank, int64_t rows) {
  return batch.narrow(0, rank * rows, rows);
}

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : module.parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

inline void expect_all_close(
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected,
    double tolerance = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(actual[i].defined() && expected[i].defined()) << "tensor " << i;
    ASSERT_EQ(actual[i].sizes(), expected[i].sizes()) << "tensor " << i;
    if (actual[i].numel() > 0) {
      const auto error =
          (actual[i].to(at::kDouble) - expected[i].to(at::kDouble))
              .abs()
              .max()
              .item<double>();
      EXPECT_LE(error, tolerance) << "tensor " << i;
    }
  }
}

/// The entries of a group's flight recorder whose names begin so.
inline std::vector<mesh::FlightRecorderEntry> entries_named(
    const mesh::Communicator& group,
    const std::string& prefix) {
  std::vector<mesh::FlightRecorderEntry> found;
  for (const auto& entry : group.flight_recorder().entries()) {
    if (entry.name.starts_with(prefix)) {
      found.push_back(entry);
    }
  }
  return found;
}

} // namespace weft::test
