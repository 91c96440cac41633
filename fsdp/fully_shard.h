#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fsdp/options.h"
#include "mesh/device_mesh.h"

namespace weft::fsdp {

/// Makes the parameters of `module`, but for those of units inside of it, a
/// unit: each rank of `dp` keeps ceil(rows / ranks) rows of each, all are
/// gathered together for the module's forward and backward, and their gradients
/// are reduced together. Inner modules first, the outermost one last or by
/// FullyShardedDataParallel. The module is called through dtensor::call().
///
/// The module is built inside dtensor::DeferredInit, and this comes after
/// tp::parallelize_module() and add_lora() and before dtensor::materialize(),
/// so that no rank ever has more than its rows.
/// `dp`: a mesh of one dim.
/// Collective: none, but all ranks do the same.
/// Throws: c10::ValueError, naming the parameter, for one that is plain, has
/// values already, lies on `dp` or another root mesh, is cut along its rows in
/// parts of given sizes, or is tied to one of another unit; for a module that
/// is a unit, and one all of whose parameters are in other units.
/// Source: torch/distributed/fsdp/_fully_shard/_fully_shard.py.
void fully_shard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {});
template <class Impl>
void fully_shard(
    const torch::nn::ModuleHolder<Impl>& module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), dp, options);
}
/// Several modules as one unit, e.g. those that share a tied weight. Gathered
/// when the first of them is used.
void fully_shard(
    const std::vector<torch::nn::Module*>& modules,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options = {});

/// Whether fully_shard() made a unit of the module.
bool is_fully_sharded(const torch::nn::Module& module);

} // namespace weft::fsdp
