#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "elastic/manager.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::elastic {

/// Adds the gradients of a module over the replica groups of a step, one
/// parameter at a time, while backward computes them. The simplest way to use a
/// Manager, for modules with few parameters.
/// Source: torchft/ddp.py (PureDistributedDataParallel).
class PureDistributedDataParallel {
 public:
  /// Lifetime: `manager` must outlive this object.
  PureDistributedDataParallel(
      Manager& manager,
      const std::shared_ptr<torch::nn::Module>& module);
  /// Removes the hooks from the parameters.
  ~PureDistributedDataParallel();
  PureDistributedDataParallel(const PureDistributedDataParallel&) = delete;
  PureDistributedDataParallel& operator=(const PureDistributedDataParallel&) =
      delete;

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

} // namespace weft::elastic
