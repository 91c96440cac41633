#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// Averages parameters over a group in place, all of one dtype in one message.
/// For DTensors it averages local tensors. Parameters that have a gradient on
/// no rank are skipped; ranks exchange this in a short message.
/// Collective: all ranks of `group`, with the same parameters; blocks.
/// Throws: c10::ValueError on all ranks if they differ in number.
/// Source: torch/distributed/algorithms/model_averaging/utils.py.
void average_parameters(
    const std::vector<at::Tensor>& parameters,
    mesh::Communicator group);

/// Returns the parameters of all groups of an optimizer.
std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

} // namespace weft::ddp
