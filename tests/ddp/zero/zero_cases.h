#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/models.h"

namespace weft::test {

using ddp::ZeroPartition;
using ddp::ZeroRedundancyOptimizer;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// An optimizer, plain or to be divided.
struct ZeroCase {
  std::string name;
  ddp::ZeroOptimizerFactory make;
};

template <class Optimizer, class Options>
ZeroCase zero_case(std::string name, const Options& options) {
  return {
      std::move(name),
      [options](
          ParamGroups groups) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<Optimizer>(std::move(groups), options);
      }};
}

inline std::vector<ZeroCase> zero_cases() {
  namespace optim = torch::optim;
  return {
      zero_case<optim::SGD>(
          "sgd", optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
      zero_case<optim::Adam>("adam", optim::AdamOptions(0.02)),
      zero_case<optim::AdamW>("adamw", optim::AdamWOptions(0.03).amsgrad(true)),
      zero_case<optim::Adagrad>("adagrad", optim::AdagradOptions(0.1)),
      zero_case<optim::RMSprop>(
          "rmsprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true))};
}

/// Sizes that no number of ranks divides, fewer rows than ranks, no rows, no
/// dims, memory that is not row-major; two dtypes.
struct ZeroModel : torch::nn::Module {
  ZeroModel() {
    add("wide", {8, 6}, at::kFloat);
    add("odd", {7, 5}, at::kFloat);
    add("bias", {5}, at::kFloat);
    add("number", {}, at::kFloat);
    add("nothing", {0, 3}, at::kFloat);
    add("row", {1, 4}, at::kFloat);
    add("half", {6, 4}, at::kBFloat16);
    add("large", {33, 9}, at::kFloat);
    add("double", {3, 3}, at::kDouble);
    add("unused", {4, 2}, at::kFloat);
    const at::NoGradGuard no_grad;
    register_parameter(
        "columns", wave({4, 6}, 0.7, at::kFloat).t().requires_grad_());
  }

  void add(const char* name, at::IntArrayRef sizes, at::ScalarType dtype) {
    const auto phase = static_cast<double>(parameters().size());
    register_parameter(name, wave(sizes, phase, dtype));
  }

  /// The first four with a learning rate of their own.
  ParamGroups groups() const {
    const auto all = parameters();
    ParamGroups result;
    result.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + 4));
    result.emplace_back(std::vector<at::Tensor>(all.begin() + 4, all.end()));
    return result;
  }
};

/// Gradients of a step, the same on all ranks; "unused" never has one, and one
/// more parameter has none in each step.
inline void set_zero_gradients(torch::nn::Module& module, int64_t step) {
  int64_t index = 0;
  for (auto& item : module.named_parameters()) {
    auto& parameter = item.value();
    const bool is_left_out =
        item.key() == "unused" || (index + 2 * step) % 9 == 1;
    parameter.mutable_grad() =
        is_left_out ? at::Tensor()
                    : wave(
                          parameter.sizes(),
                          0.31 * static_cast<double>(7 * step + index),
                          parameter.scalar_type())
                          .clone();
    ++index;
  }
}

inline std::string zero_options_name(
    const ddp::ZeroRedundancyOptimizerOptions& options) {
  return std::string(
             options.partition == ZeroPartition::kEvenSplit ? "split"
                                                            : "whole") +
         (options.parameters_as_bucket_view ? " views" : "") +
         (options.overlap_with_forward ? " overlap" : "");
}

/// Both partitions, with views and overlap and without, in small buckets.
inline std::vector<ddp::ZeroRedundancyOptimizerOptions> all_zero_options() {
  std::vector<ddp::ZeroRedundancyOptimizerOptions> all;
  for (const auto partition :
       {ZeroPartition::kWholeParameters, ZeroPartition::kEvenSplit}) {
    for (const bool views : {false, true}) {
      for (const bool overlap : {false, true}) {
        all.push_back(
            {.partition = partition,
             .parameters_as_bucket_view = views,
             .bucket_cap_mb = 300.0 / (1 << 20),
             .overlap_with_forward = overlap});
      }
    }
  }
  return all;
}

inline void expect_same_parameters(
    const torch::nn::Module& actual,
    const torch::nn::Module& expected,
    const std::string& what) {
  const auto other = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    const auto a = dtensor::is_dtensor(item.value())
                       ? dtensor::to_local(item.value()).detach()
                       : item.value().detach();
    const auto& twin = other[item.key()];
    const auto b = dtensor::is_dtensor(twin) ? dtensor::to_local(twin).detach()
                                             : twin.detach();
    EXPECT_TRUE(at::equal(a, b))
        << what << ": " << item.key() << " differs by "
        << (a.numel() > 0 ? (a - b).abs().max().to(at::kDouble).item<double>()
                          : 0.0);
  }
}

} // namespace weft::test
