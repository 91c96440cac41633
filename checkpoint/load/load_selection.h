#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/load/load.h"
#include "checkpoint/save/state_items.h"

namespace weft::checkpoint {

/// A tensor of a state to fill, and the one of a checkpoint that fills it.
struct LoadTarget {
  StateItem item;
  /// Its name in the checkpoint.
  std::string source;
  /// In the checkpoint.
  at::ScalarType dtype;
};

struct LoadSelection {
  /// In the order of the items.
  std::vector<LoadTarget> targets;
  /// See LoadStats.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};

/// What load() is to fill from what. A function of the manifest and of what all
/// ranks ask for alike: the same on every rank. `parts` are the keys of the
/// StateDicts: tensors of other parts are nobody's business.
/// Throws: c10::ValueError as load().
LoadSelection select_tensors(
    const std::filesystem::path& folder,
    const Manifest& manifest,
    const std::vector<StateItem>& items,
    const std::vector<std::string>& parts,
    const LoadOptions& options);

} // namespace weft::checkpoint
