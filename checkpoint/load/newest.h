#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "mesh/world.h"

namespace weft::checkpoint {

/// What became of a search for the newest sound step.
struct NewestStep {
  /// None: there is none.
  std::optional<StepFolder> found = std::nullopt;
  /// Newer ones, the newest first, that are damaged.
  std::vector<int64_t> damaged = {};
};

/// Reads and uses one step: throws CheckpointError, on all ranks or on none, if
/// it is damaged.
using StepAttempt = std::function<void(const StepFolder&, const Manifest&)>;
/// Is told, on rank 0 only, why a step is skipped.
using SkipNotice =
    std::function<void(const StepFolder&, const std::string& reason)>;

/// Has `attempt` try the steps of a folder, the newest first, until one is
/// sound. Rank 0's list of steps counts.
/// Collective: all ranks of `world`; blocks.
/// Throws: what `attempt` throws but for CheckpointError; CheckpointError if
/// rank 0 cannot list the folder.
NewestStep find_newest(
    const std::filesystem::path& checkpoints,
    const std::optional<mesh::World>& world,
    const StepAttempt& attempt,
    const SkipNotice& notice = {},
    const std::string& hmac_key = {});

/// The step that load_newest() has loaded.
struct LoadedStep {
  StepFolder folder;
  Manifest manifest;
  LoadStats stats;
  /// As in NewestStep.
  std::vector<int64_t> damaged;
};

/// Loads the newest step of `checkpoints` that is sound, or an older one where
/// newer ones are damaged. Nothing if there is no step at all. With
/// all_or_nothing = false tensors that the loaded step lacks may have values
/// of a damaged one.
/// Collective: all ranks of the world; blocks.
/// Throws: c10::ValueError as load(): a step of another model is no damage and
/// ends the search. CheckpointError, on all ranks, if there are steps and all
/// are damaged.
std::optional<LoadedStep> load_newest(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const LoadOptions& options = {},
    const SkipNotice& notice = {});

} // namespace weft::checkpoint
