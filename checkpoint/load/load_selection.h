#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/load/load.h"
#include "checkpoint/save/state_items.h"

namespace weft::checkpoint {

/// A tensor of the state to fill, and the tensor of the checkpoint that fills
/// it.
struct LoadTarget {
  StateItem item;
  /// The tensor's name in the checkpoint.
  std::string source;
  /// The dtype in the checkpoint.
  at::ScalarType dtype;
};

struct LoadSelection {
  /// The targets, in the order of the items.
  std::vector<LoadTarget> targets;
  /// The missing and unexpected tensors, see LoadStats.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};

/// Selects the tensors that load() fills, and their sources. Depends only on
/// the manifest and on arguments that are identical on all ranks, so every rank
/// gets the same result. `parts` are the keys of the StateDicts; tensors of
/// other parts are ignored.
/// Throws: c10::ValueError like load().
LoadSelection select_tensors(
    const std::filesystem::path& folder,
    const Manifest& manifest,
    const std::vector<StateItem>& items,
    const std::vector<std::string>& parts,
    const LoadOptions& options);

} // namespace weft::checkpoint
