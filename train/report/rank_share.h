#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::train {

/// A parameter and its placements.
struct ParameterShare {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  /// One placement per mesh dim, e.g. {"R", "S(0)"}.
  std::vector<std::string> placements;
  /// The bytes on the rank with the smallest shard and on the rank with the
  /// largest shard.
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;
};

/// The part of a model's parameters that each rank of a mesh stores. This is
/// the content of layout.json.
struct RankShares {
  std::vector<std::string> mesh_dims;
  std::vector<int64_t> mesh_shape;
  /// The world ranks of the mesh in row-major order, and the number of elements
  /// and bytes of each.
  std::vector<int64_t> ranks;
  std::vector<int64_t> elements;
  std::vector<int64_t> bytes;
  /// The size of the full model.
  int64_t total_elements = 0;
  int64_t total_bytes = 0;
  std::vector<ParameterShare> parameters;

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

/// Computes the shares of all ranks of `mesh` from the parameters' specs,
/// without communication. A parameter is replicated along the dims of `mesh`
/// that its own mesh does not have, and a plain tensor along all dims. A
/// parameter that two modules share counts once.
/// Throws: c10::ValueError if a parameter's mesh has a dim that `mesh` lacks.
RankShares rank_shares(
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh);

/// Returns one line of JSON.
std::string to_json(const RankShares& shares);
/// Parses the output of to_json().
/// Throws: mesh::UsageError if `text` is malformed; it has the reason.
RankShares parse_rank_shares(const std::string& text);

/// Writes layout.json to a run's folder, for its report. To be called on one
/// rank.
/// Throws: mesh::UsageError if it cannot be written.
void write_rank_shares(
    const std::string& run_folder,
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh);

} // namespace weft::train
