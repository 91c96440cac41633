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

/// Parses "dp=1,tp=4" or "dp=1 tp=4".
/// Throws: mesh::UsageError if the text is invalid.
MeshSizes parse_mesh_sizes(std::string_view text);

struct ReshardOptions {
  /// The mesh to shard for. Must have the dims of every tensor's mesh, by name
  /// and in the same order. A tensor is replicated over a dim that its own mesh
  /// lacks.
  MeshSizes mesh;
  bool fsync = true;
  /// Stores a SHA-256 of every piece in addition to XXH3.
  bool sha256 = false;
  /// The key of the HMAC that the source must have and that the result gets.
  /// Empty disables the HMAC.
  std::string hmac_key = {};
  Progress progress = {};
};

struct Resharded {
  /// The step folder.
  std::filesystem::path path;
  int64_t tensors = 0;
  int64_t files = 0;
  /// The bytes of the files.
  int64_t bytes = 0;
  /// The tensors that could not keep their placements, with the reasons.
  std::vector<std::string> notes;
};

/// Rewrites the checkpoint `step_folder` as `checkpoints`/step-<step>, sharded
/// as the ranks of another mesh would have saved it. Each tensor keeps its
/// placements; split factors of StridedShards are adapted to the new mesh.
/// State and layout are copied. Runs in one process without communication,
/// verifies the data that it reads, and holds a few MiB at a time. A tensor
/// sharded along columns is read once per part.
/// A tensor that was on no mesh, or whose placements cannot be parsed, is
/// replicated; a Shard of given sizes becomes one of equal parts if the sizes
/// do not fit.
/// Throws: mesh::UsageError if the mesh lacks a dim of a tensor's mesh or has
/// more than 65,536 ranks, or if the step exists; CheckpointError if the source
/// is damaged; std::system_error with path and errno.
Resharded reshard(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& checkpoints,
    const ReshardOptions& options);

} // namespace weft::checkpoint
