#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "tp/parallelize_module.h"

namespace weft::tp {

/// Values in (-1, 1) that depend on nothing but their place and `phase`.
inline at::Tensor wave(at::IntArrayRef sizes, double phase = 0.1) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  return at::sin(at::arange(numel, at::kDouble) * 1.7 + phase).view(sizes);
}

/// A module built deferred, placed by `plan`, with values in double.
template <class M>
std::shared_ptr<M> make_parallel(
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan) {
  std::shared_ptr<M> module;
  {
    const dtensor::DeferredInit scope;
    module = std::make_shared<M>();
  }
  parallelize_module(*module, mesh, plan);
  dtensor::materialize(*module, /*seed=*/5);
  module->to(at::kDouble);
  return module;
}

/// Equal values in plain tensors.
/// Collective: all ranks of the module's mesh.
template <class M>
std::shared_ptr<M> plain_copy(const M& module) {
  auto plain = std::make_shared<M>();
  plain->to(at::kDouble);
  const at::NoGradGuard no_grad;
  auto to = plain->parameters();
  const auto from = module.parameters();
  EXPECT_EQ(to.size(), from.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(dtensor::full_tensor(from[i]));
  }
  return plain;
}

inline at::Tensor whole(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor;
}

/// A loss in which every element weighs otherwise.
inline at::Tensor loss_of(const at::Tensor& output) {
  const auto y = whole(output);
  return (y.pow(2) * wave(y.sizes(), 0.7)).sum();
}

inline void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const std::string& what) {
  const at::NoGradGuard no_grad;
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  const auto values = whole(actual);
  ASSERT_EQ(values.sizes(), expected.sizes()) << what;
  if (values.numel() != 0) {
    EXPECT_LE((values - expected).abs().max().item<double>(), 1e-11) << what;
  }
}

/// The parameters' gradients are the plain module's and are where the
/// parameters do.
inline void expect_same_gradients(
    const torch::nn::Module& module,
    const torch::nn::Module& plain) {
  const auto expected = plain.named_parameters();
  for (const auto& item : module.named_parameters()) {
    const auto& grad = item.value().grad();
    ASSERT_TRUE(grad.defined()) << item.key();
    EXPECT_EQ(dtensor::spec_of(grad), dtensor::spec_of(item.value()))
        << item.key();
    expect_close(grad, expected[item.key()].grad(), item.key() + " gradient");
  }
}

/// The part of a full tensor that lies here, as a plain leaf.
inline at::Tensor local_leaf(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    Placement placement) {
  return dtensor::to_local(
             dtensor::distribute_tensor(
                 tensor.detach(), mesh, {placement}, std::nullopt))
      .detach()
      .clone()
      .requires_grad_();
}

} // namespace weft::tp
