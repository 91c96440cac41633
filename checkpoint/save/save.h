#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "dtensor/nn/state_dict.h"
#include "mesh/world.h"

namespace weft::checkpoint {

/// The parts of a state, e.g. "model" and "optimizer". Tensor `name` of part
/// `part` is stored with the key "<part>.<name>".
using StateDicts = std::map<std::string, dtensor::StateDict>;

/// The options of save().
struct SaveOptions {
  /// The step, which gives the folder its name, `step-<step>`.
  int64_t step = 0;
  /// A JSON object with other values that a resumed run needs, e.g. the data
  /// cursor.
  std::string state = "{}";
  /// A JSON object with values that depend on the mesh or the machine, e.g.
  /// buckets. `weft checkpoint diff` does not compare it.
  std::string layout = "{}";
  /// True if save() returns only after all data is on the disk. If false, it
  /// may still be in the kernel.
  bool fsync = true;
  /// The world that saves. Needed only if no tensor is a DTensor on a mesh;
  /// without it this rank then saves alone.
  std::optional<mesh::World> world = std::nullopt;
};

/// Thrown if a save failed on some rank. Nothing was committed, earlier
/// checkpoints are unchanged, and all ranks are at the same point: training may
/// continue.
class SaveError : public c10::Error {
  using c10::Error::Error;
};

/// Writes `dicts` to `checkpoints/step-<N>`, which appears atomically; see
/// docs/checkpoint_format.md. Each distinct part of a tensor is written once,
/// by one of the ranks that hold it. Plain tensors are treated as replicated.
/// Returns the folder.
/// Collective: all ranks of the world, with identical keys, shapes, placements
/// and options; blocks. `checkpoints` must be a folder that all ranks share.
/// Throws: c10::ValueError if a tensor is Partial, deferred, or on a mesh that
/// does not contain every rank; mesh::DisagreementError if the ranks' arguments
/// differ; SaveError, identical on all ranks, with the rank, path and reason,
/// if a rank fails.
std::filesystem::path save(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const SaveOptions& options);

} // namespace weft::checkpoint
