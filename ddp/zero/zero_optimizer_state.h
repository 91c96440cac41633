#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "ddp/zero/zero_redundancy_optimizer.h"

namespace weft::ddp {

/// What a ZeroRedundancyOptimizer is made of.
struct ZeroRedundancyOptimizer::State {
  mesh::DeviceMesh dp;
  ZeroRedundancyOptimizerOptions options;
  int64_t cap_bytes;
  ZeroOptimizerFactory factory;
  PartPlanner planner;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  /// How many parameters of each group are in buckets.
  std::vector<size_t> planned = {};
  std::vector<ZeroBucket> buckets = {};
  std::function<void()> before_update = {};

  mesh::Communicator group() const { return dp.group(int64_t{0}); }
  /// Collective: all replicas.
  void check_agreement(
      std::vector<std::string> lines,
      const torch::optim::OptimizerOptions& defaults) const;
  void wait_for(const torch::nn::Module& module);
};

} // namespace weft::ddp
