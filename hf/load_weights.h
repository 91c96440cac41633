#pragma once

#include <cstdint>
#include <string>

#include "config/recipe.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/world.h"

namespace weft::recipes::hub {

/// That the folder model.from has the weights of recipe.model. No weight is
/// read, and there is no communication.
/// Throws: mesh::UsageError at model.from; checkpoint::CheckpointError if a
/// file is damaged.
void check_weights(const Recipe& recipe);

struct LoadedWeights {
  int64_t tensors = 0;
  /// By this rank.
  int64_t bytes_read = 0;
  /// See ModelFiles::notice().
  std::string notice = {};
};

/// Fills the tensors of a model's state from the folder model.from; adapters
/// keep their values. Each rank reads the bytes of its own part, into its place
/// but for a block at a time.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::UsageError at model.from; checkpoint::CheckpointError, the
/// same on all ranks, if a file is damaged.
LoadedWeights load_weights(
    const Recipe& recipe,
    const dtensor::StateDict& state,
    const mesh::World& world);

/// Whether a parameter of that name is an adapter's, which no folder has.
bool is_adapter(const std::string& name);

} // namespace weft::recipes::hub
