#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fsdp/options.h"
#include "mesh/device_mesh.h"

namespace weft::fsdp {

/// Makes the parameters of `module`, except those of units inside it, a unit:
/// each rank of `dp` keeps ceil(rows / ranks) rows of each parameter; they are
/// gathered together for the module's forward and backward, and their gradients
/// are reduced together. If `dp` has two dims, the last one shards, and the
/// first one replicates the shards (hybrid sharding): gradients are reduced
/// over the last dim and then summed over the first. Call it for inner modules
/// first, and for the outermost module last (FullyShardedDataParallel does
/// that). The module must be called through dtensor::call(). Build the module
/// in dtensor::DeferredInit, and call this function after
/// tp::parallelize_module() and add_lora() and before dtensor::materialize(),
/// so that no rank ever holds more than its rows.
/// Collective: none, but all ranks must make the same calls.
/// Throws: c10::ValueError naming the parameter, if it is plain, has values
/// already, is on `dp` or another root mesh, or is tied to one of another unit;
/// also for a module that is already a unit or whose parameters are all in
/// other units, and for a mesh of more than 2 dims.
/// Source: torch/distributed/fsdp/_fully_shard/_fully_shard.py.
void fully_shard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {});
/// Like fully_shard() above, with a module holder.
template <class Impl>
void fully_shard(
    const torch::nn::ModuleHolder<Impl>& module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), dp, options);
}
/// Makes several modules one unit, e.g. those that share a tied weight. It is
/// gathered when the first of them is used.
void fully_shard(
    const std::vector<torch::nn::Module*>& modules,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {});

/// Returns true if fully_shard() made a unit of the module.
bool is_fully_sharded(const torch::nn::Module& module);

} // namespace weft::fsdp
