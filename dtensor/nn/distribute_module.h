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

/// Makes a module's own parameter or buffer lie as `placements` say and
/// returns it. A DTensor (built inside DeferredInit) changes in place, its
/// values come with materialize(); a plain one is replaced by rank 0's,
/// distributed, in the module's table and in the member that forward() reads.
/// `path` is the module's fully qualified name, for messages and names. With
/// `src_data_rank = nullopt` a plain tensor is each rank's own, and nothing is
/// sent.
/// Collective: all ranks of the mesh for plain tensors.
/// Throws: c10::ValueError where check_distributable() does.
at::Tensor distribute_parameter(
    torch::nn::Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path = {},
    std::optional<int64_t> src_data_rank = 0);

/// Whether distribute_parameter() would be refused, without doing it.
/// Throws: c10::ValueError if the module has no such tensor, if it is plain
/// and the module's type is none of libtorch's own, or if it has another place
/// already.
void check_distributable(
    torch::nn::Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path = {});

/// Makes all parameters and buffers of `module` and its submodules that lie on
/// no mesh Replicate. Plain buffers of modules that are none of libtorch's own
/// stay as they are.
/// Collective: all ranks of the mesh, unless everything is deferred.
void replicate_unplaced(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> src_data_rank = 0);

/// Gets each submodule with its name ("" for the module itself) and places its
/// parameters with distribute_parameter().
using PartitionFn = std::function<void(
    const std::string& name,
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh)>;
/// Gets the inputs of a call and returns those that forward() is to see.
using InputFn = std::function<std::vector<at::Tensor>(
    torch::nn::Module& module,
    std::vector<at::Tensor> inputs,
    const mesh::DeviceMesh& mesh)>;
/// Gets the output of a call and returns what the caller is to see.
using OutputFn = std::function<at::Tensor(
    torch::nn::Module& module,
    const at::Tensor& output,
    const mesh::DeviceMesh& mesh)>;

/// Puts a module on a mesh: what `partition_fn` leaves alone, or everything
/// without one, becomes Replicate. `input_fn` and `output_fn` act on calls
/// through weft::dtensor::call(); the former sees all positional tensors.
/// Collective: all ranks of the mesh, unless the module was built inside
/// DeferredInit.
/// Throws: c10::ValueError where distribute_parameter() does, or the second
/// time that a module gets an input_fn or output_fn.
/// Source: torch/distributed/tensor/_api.py.
void distribute_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const PartitionFn& partition_fn = {},
    const InputFn& input_fn = {},
    const OutputFn& output_fn = {});

} // namespace weft::dtensor
