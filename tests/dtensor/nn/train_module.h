#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mesh/device_mesh.h"

namespace weft::dtensor::test {

using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// A module, and what one calls it with.
struct Built {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

struct ModuleCase {
  std::string name;
  /// Called inside DeferredInit.
  std::function<Built()> build;
  /// Whole; cut over dp along the batch.
  std::vector<at::Tensor> inputs;
  /// 0 for inputs not named; -1: replicated.
  std::vector<int64_t> batch_dims = {};
};

void PrintTo(const ModuleCase& each, std::ostream* stream);

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<at::Tensor>&)>;

/// The result of a training, which is equal on every mesh.
struct Trace {
  std::vector<double> losses;
  /// Parameters and buffers, whole, by name.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

/// Builds the case's module in float64 inside DeferredInit, cuts every
/// parameter over tp (along `cut_dim` where it has that dim, else along its
/// first), materializes it and trains 10 steps; inputs are sharded over dp.
/// `mesh`: dims dp and tp.
/// Collective: all ranks of the mesh.
Trace train_module(
    const ModuleCase& module,
    const mesh::DeviceMesh& mesh,
    int64_t cut_dim,
    const MakeOptimizer& make_optimizer);

/// Runs a training on one rank and on 1x2, 1x3 and 2x2, parameters cut along
/// dim 0 and dim 1, and expects the one rank's trace within 1e-9.
void expect_equal_traces(
    const std::function<Trace(const mesh::DeviceMesh&, int64_t cut_dim)>&
        train);

} // namespace weft::dtensor::test
