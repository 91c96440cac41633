#pragma once

#include <cstdint>
#include <string>

#include "config/recipe.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/world.h"

namespace weft::hf {

/// Checks that the folder model.from has the weights of recipe.model. Reads no
/// weights and does not communicate.
/// Throws: mesh::UsageError that names the place of model.from, if weights are
/// missing or do not match the model; checkpoint::CheckpointError if a file is
/// damaged.
void check_weights(const config::Recipe& recipe);

struct LoadedWeights {
  int64_t tensors = 0;
  /// The number of bytes that this rank read.
  int64_t bytes_read = 0;
  /// See ModelFiles::notice().
  std::string notice = {};
};

/// Fills the tensors of a model's state from the folder model.from; adapters
/// keep their values. Each rank reads only the bytes of its own shards, into
/// the shards' memory; at most one block is buffered.
/// Collective: all ranks of `world`; blocks.
/// Throws: like check_weights(), identical on all ranks; on a rank that is
/// short of memory, what its allocator throws.
LoadedWeights load_weights(
    const config::Recipe& recipe,
    const dtensor::StateDict& state,
    const mesh::World& world);

/// Returns true if a parameter of that name belongs to an adapter. model.from
/// never has adapter weights.
bool is_adapter(const std::string& name);

} // namespace weft::hf
