#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::recipes {

/// A parameter and where it lies.
struct ParameterShare {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  /// One a dim of the mesh, e.g. {"R", "S(0)"}.
  std::vector<std::string> placements;
  /// Bytes on the rank that holds the fewest, and the most.
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;
};

/// Which part of a model's parameters each rank of a mesh holds: layout.json.
struct RankShares {
  std::vector<std::string> mesh_dims;
  std::vector<int64_t> mesh_shape;
  /// World ranks of the mesh, row-major, and what each holds.
  std::vector<int64_t> ranks;
  std::vector<int64_t> elements;
  std::vector<int64_t> bytes;
  /// Of the whole model.
  int64_t total_elements = 0;
  int64_t total_bytes = 0;
  std::vector<ParameterShare> parameters;

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

/// The shares of all ranks of `mesh`, computed by this one alone from the
/// parameters' specs: nothing is communicated. A parameter is whole along the
/// dims of `mesh` that its own mesh does not have, and a plain tensor along
/// all; one that two modules share counts once.
/// Throws: c10::ValueError if a parameter's mesh has a dim that `mesh` lacks.
RankShares rank_shares(
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh);

/// One line of JSON.
std::string to_json(const RankShares& shares);
/// Throws: mesh::UsageError saying what is wrong with `text`.
RankShares parse_rank_shares(const std::string& text);

/// Writes layout.json in a run's folder, for its report. One rank calls it.
/// Throws: mesh::UsageError if it cannot be written.
void write_rank_shares(
    const std::string& run_folder,
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh);

} // namespace weft::recipes
