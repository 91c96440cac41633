#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/files/progress.h"

namespace weft::checkpoint {

/// Mesh dims with their sizes, in order.
using MeshSizes = std::vector<std::pair<std::string, int64_t>>;

/// Reads "dp=1,tp=4" or "dp=1 tp=4".
/// Throws: mesh::UsageError saying what is wrong with it.
MeshSizes parse_mesh_sizes(std::string_view text);

struct ReshardOptions {
  /// The mesh to cut for. Has the dims of every tensor's mesh by name and in
  /// their order; over one that a tensor's mesh lacks it is replicated.
  MeshSizes mesh;
  bool sync = true;
  /// SHA-256 of every piece, beside XXH3.
  bool sha256 = false;
  /// The source must have this HMAC, and the result gets it. Empty: none.
  std::string hmac_key = {};
  Progress progress = {};
};

struct Resharded {
  /// The step folder.
  std::filesystem::path path;
  int64_t tensors = 0;
  int64_t files = 0;
  /// Of the files.
  int64_t bytes = 0;
  /// Tensors that could not keep their placements, and why.
  std::vector<std::string> notes;
};

/// Writes the checkpoint `step_folder` again, `checkpoints`/step-<the same>,
/// cut as ranks of another mesh would have saved it: each tensor keeps its
/// placements, of which StridedShards count the new parts. State and layout are
/// carried over. One process, no communication; verifies what it reads, and
/// holds a few MiB at a time. What is cut along columns is read once a part.
///
/// A tensor that was on no mesh is replicated, as is one whose placements are
/// not understood; a Shard of given sizes becomes one of equal parts where they
/// do not fit.
/// Throws: mesh::UsageError if the mesh lacks a dim of a tensor's mesh, is of
/// more than 65,536 ranks, or the step exists; CheckpointError if the source is
/// damaged; std::system_error with path and errno.
Resharded reshard(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& checkpoints,
    const ReshardOptions& options);

} // namespace weft::checkpoint
