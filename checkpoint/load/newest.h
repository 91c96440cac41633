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

/// The result of find_newest().
struct NewestStep {
  /// The step. Not set if there is none that can be used.
  std::optional<StepFolder> found = std::nullopt;
  /// The damaged steps that were skipped, newest first.
  std::vector<int64_t> damaged = {};
};

/// Reads and uses one step. Throws CheckpointError, on all ranks or on none, if
/// the step is damaged.
using StepAttempt = std::function<void(const StepFolder&, const Manifest&)>;
/// Called on rank 0 only, with the reason for skipping a step.
using SkipNotice =
    std::function<void(const StepFolder&, const std::string& reason)>;

/// A step whose manifest was read before, equal on all ranks.
struct KnownStep {
  /// The step and its path.
  StepFolder folder;
  /// The manifest of the step.
  Manifest manifest;
};

/// Calls `attempt` for the steps of a folder, newest first, until one is not
/// damaged. All ranks use rank 0's list of steps, and the manifest of `known`
/// without reading it again.
/// Collective: all ranks of `world`; blocks.
/// Throws: the exceptions of `attempt` except for CheckpointError;
/// CheckpointError if rank 0 cannot list the folder.
NewestStep find_newest(
    const std::filesystem::path& checkpoints,
    const std::optional<mesh::World>& world,
    const StepAttempt& attempt,
    const SkipNotice& notice = {},
    const std::string& hmac_key = {},
    const std::optional<KnownStep>& known = std::nullopt);

/// The step that load_newest() loaded.
struct LoadedStep {
  /// The step and its path.
  StepFolder folder;
  /// The manifest of the step.
  Manifest manifest;
  /// The statistics of the load.
  LoadStats stats;
  /// The damaged steps that were skipped, newest first.
  std::vector<int64_t> damaged;
};

/// Loads the newest step of `checkpoints` that is not damaged. Returns nullopt
/// if there are no steps. With all_or_nothing = false, tensors that the loaded
/// step lacks may have values of a damaged one.
/// Collective: all ranks of the world; blocks.
/// Throws: c10::ValueError like load(): a step of another model is not damaged
/// and ends the search. CheckpointError, on all ranks, if there are steps and
/// all are damaged.
std::optional<LoadedStep> load_newest(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const LoadOptions& options = {},
    const SkipNotice& notice = {});

} // namespace weft::checkpoint
