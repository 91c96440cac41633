#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "fsdp/options.h"
#include "fsdp/sharded_parameter.h"
#include "mesh/device_mesh.h"

namespace weft::fsdp {

class Schedule;
class Unit;

/// The declaration of a unit by fully_shard(), until the model has values and
/// units are created. Stored in the unit's modules as a child without
/// parameters.
struct UnitDeclaration : torch::nn::Module {
  struct Parameter {
    at::Tensor tensor;
    ShardedPlacement placement;
  };
  std::vector<Parameter> parameters;
  mesh::DeviceMesh dp;
  FullyShardOptions options;
  /// Set when units are created.
  std::weak_ptr<Schedule> schedule;
  Unit* unit = nullptr;
};

/// Returns the 1-D mesh over which the units of a mesh are sharded: its last
/// dim.
mesh::DeviceMesh shard_mesh(const mesh::DeviceMesh& dp);

/// Returns the declaration of a module, or null if it is not a unit.
std::shared_ptr<UnitDeclaration> find_declaration(
    const torch::nn::Module& module);

} // namespace weft::fsdp
