#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::dtensor {

/// Gives a module's own parameter or buffer `placements` and returns it. A
/// DTensor (built in DeferredInit) changes in place and gets its values at
/// materialize(). A plain tensor is replaced, in the module's table and in the
/// member that forward() reads, by rank 0's tensor, distributed. `path` is the
/// module's fully qualified name, used in messages and names. With
/// `src_data_rank = nullopt` each rank uses its own plain tensor, and nothing
/// is sent.
/// Collective: all ranks of the mesh for plain tensors.
/// Throws: c10::ValueError if check_distributable() does.
at::Tensor distribute_parameter(
    torch::nn::Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path = {},
    std::optional<int64_t> src_data_rank = 0);

/// Checks whether distribute_parameter() would succeed.
/// Throws: c10::ValueError if the module has no such tensor, if the tensor is
/// plain and the module's type is not libtorch's, or if it already has other
/// placements.
void check_distributable(
    torch::nn::Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path = {});

/// Replicates all parameters and buffers of `module` and its submodules that
/// are on no mesh. Plain buffers of modules that are not libtorch's stay plain.
/// Collective: all ranks of the mesh, unless everything is deferred.
void replicate_unplaced(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> src_data_rank = 0);

/// Receives each submodule with its name ("" for the module itself) and places
/// its parameters with distribute_parameter().
using PartitionFn = std::function<void(
    const std::string& name,
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh)>;
/// Receives the inputs of a call and returns the inputs of forward().
using InputFn = std::function<std::vector<at::Tensor>(
    torch::nn::Module& module,
    std::vector<at::Tensor> inputs,
    const mesh::DeviceMesh& mesh)>;
/// Receives the output of a call and returns the output for the caller.
using OutputFn = std::function<at::Tensor(
    torch::nn::Module& module,
    const at::Tensor& output,
    const mesh::DeviceMesh& mesh)>;

/// Places a module on a mesh. Parameters that `partition_fn` does not place, or
/// all without one, become Replicate. `input_fn` and `output_fn` run in calls
/// through weft::dtensor::call(); the former receives all positional tensors.
/// Collective: all ranks of the mesh, unless the module was built in
/// DeferredInit.
/// Throws: c10::ValueError if distribute_parameter() does, or if a module gets
/// an input_fn or output_fn twice.
/// Source: torch/distributed/tensor/_api.py.
void distribute_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const PartitionFn& partition_fn = {},
    const InputFn& input_fn = {},
    const OutputFn& output_fn = {});

} // namespace weft::dtensor
