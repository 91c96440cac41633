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
/// `part` has the key "<part>.<name>" in the files.
using StateDicts = std::map<std::string, dtensor::StateDict>;

struct SaveOptions {
  /// The folder is step-<step>.
  int64_t step = 0;
  /// JSON object: what else has to come back on resume, e.g. the data cursor.
  std::string state = "{}";
  /// JSON object: what depends on the mesh or the machine, e.g. buckets. Not
  /// compared by `weft checkpoint diff`.
  std::string layout = "{}";
  /// Whether all is on disk, not only with the kernel, before save() returns.
  bool sync = true;
  /// Needed only where no tensor is a DTensor on a mesh; then without it one
  /// rank saves alone.
  std::optional<mesh::World> world = std::nullopt;
};

/// A save failed on some rank. Nothing was committed, earlier checkpoints are
/// untouched, and no rank is ahead of the others: training may go on.
class SaveError : public c10::Error {
  using c10::Error::Error;
};

/// Writes `dicts` to `checkpoints`/step-<N>, which appears whole or not at all;
/// see docs/checkpoint_format.md. Each distinct part of a tensor is written
/// once, by one of the ranks that hold it. Plain tensors count as replicated.
/// Returns the folder.
/// Collective: all ranks of the world, the same keys, shapes, placements and
/// options; blocks. `checkpoints` must be a folder that all ranks see.
/// Throws: c10::ValueError for a tensor that is Partial, deferred, or on a mesh
/// that does not hold every rank; mesh::DisagreementError; SaveError, the same
/// on all ranks, naming the rank, path and reason.
std::filesystem::path save(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const SaveOptions& options);

} // namespace weft::checkpoint
