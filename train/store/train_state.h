#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "mesh/communicator/communicator.h"

namespace weft::train {

/// The state of a run other than its tensors. It is identical on every rank and
/// mesh.
struct TrainState {
  /// The number of optimizer steps done.
  int64_t step = 0;
  /// The number of tokens trained on so far, over all replicas.
  int64_t tokens = 0;
  /// The data cursor: the global index of the next step's first sample.
  int64_t next_sample = 0;
  /// A fingerprint of the names and sizes of the run's data files.
  std::string data_fingerprint;
  /// The number of consecutive steps, up to this one, that were skipped because
  /// they were not finite.
  int64_t skipped_in_a_row = 0;

  bool operator==(const TrainState&) const = default;
};

using BucketNames = std::vector<std::vector<std::string>>;

/// Gathers the entries of RunLayout.buckets from all ranks.
/// Collective: all ranks of `tp`, the tensor-parallel group; blocks.
std::vector<BucketNames> gather_bucket_names(
    mesh::Communicator& tp,
    const BucketNames& own);

/// The state that belongs to one mesh or one launch.
struct RunLayout {
  /// The mesh: "dp=2 tp=2".
  std::string mesh;
  /// By tensor-parallel rank, the parameter names of each gradient bucket in
  /// order. The state of a comm hook refers to them. Tensor-parallel ranks can
  /// differ because of uneven shards and measured caps. Empty before the first
  /// backward.
  std::vector<BucketNames> buckets;
  /// The resolved value of recipe.products.
  config::Products products = config::Products::kLibtorch;
  /// The cost model that redistributions were planned with: recipe.cost_model
  /// and recipe.links.
  config::CostModel cost_model = config::CostModel::kDefault;
  config::LinksConfig links;
  /// The resolved recipe as YAML.
  std::string recipe;
  /// The line of metrics.jsonl for the saved step. The file gets it only after
  /// the save.
  std::string metrics_line;
};

/// Returns JSON objects for SaveOptions.state and .layout. The state includes
/// values that follow from the recipe and the step (random numbers, schedule),
/// so that a comparison of two checkpoints covers them.
std::string to_json(const TrainState& state, const config::Recipe& recipe);
std::string to_json(const RunLayout& layout);

/// Parses the output of to_json().
/// Throws: checkpoint::CheckpointError with `source` if the text is malformed.
TrainState parse_train_state(
    const std::string& json,
    const std::string& source);
RunLayout parse_run_layout(const std::string& json, const std::string& source);

} // namespace weft::train
