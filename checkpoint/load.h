#pragma once

#include <filesystem>
#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "mesh/world.h"

namespace weft::checkpoint {

struct LoadOptions {
  /// Read everything before the first tensor changes, so that a damaged
  /// checkpoint leaves all as it was. Costs memory for a second copy; without,
  /// a failed load leaves tensors with some of the values.
  bool all_or_nothing = true;
  /// Refuse a checkpoint that has more tensors in a part than are asked for.
  bool strict = true;
  /// As in SaveOptions.
  std::optional<mesh::World> world = std::nullopt;
};

/// What load() did on this rank.
struct LoadStats {
  /// Read from files, headers included.
  int64_t bytes_read = 0;
};

/// Reads a step folder's manifest on every rank.
/// Collective: all ranks of `world`; blocks.
/// Throws: CheckpointError, on all ranks, if one of them cannot read it.
Manifest read_manifest(
    const std::filesystem::path& step_folder,
    const std::optional<mesh::World>& world);

/// Fills the tensors of `dicts`, in place and wherever they lie, from a step
/// folder that was saved on any mesh. Reads only the pieces that this rank's
/// parts touch, and verifies each of them.
/// Collective: all ranks of the world, the same keys; blocks.
/// Throws: c10::ValueError if keys, shapes or dtypes differ from the
/// checkpoint's; CheckpointError, the same on all ranks, naming the rank, file,
/// tensor and offset of the damage.
LoadStats load(
    const std::filesystem::path& step_folder,
    const StateDicts& dicts,
    const LoadOptions& options = {});

/// The same with a manifest that was read before.
LoadStats load(
    const std::filesystem::path& step_folder,
    const Manifest& manifest,
    const StateDicts& dicts,
    const LoadOptions& options = {});

} // namespace weft::checkpoint
