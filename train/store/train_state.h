#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "mesh/communicator/communicator.h"

namespace weft::recipes {

/// What a run has to remember beside its tensors, the same on every rank and
/// every mesh.
struct TrainState {
  /// Optimizer steps done.
  int64_t step = 0;
  /// Trained on so far, over all replicas.
  int64_t tokens = 0;
  /// The data cursor: the global index of the next step's first sample.
  int64_t next_sample = 0;
  /// Of the run: names and sizes of its data files.
  std::string data_fingerprint;
  /// Steps that were not finite and skipped, up to this one.
  int64_t skipped_in_a_row = 0;

  bool operator==(const TrainState&) const = default;
};

using BucketNames = std::vector<std::vector<std::string>>;

/// The entries of RunLayout.buckets, from each rank's own.
/// Collective: all ranks of `tp`, the tensor-parallel group; blocks.
std::vector<BucketNames> gather_bucket_names(
    mesh::Communicator& tp,
    const BucketNames& own);

/// What belongs to one mesh or one launch.
struct RunLayout {
  /// "dp=2 tp=2".
  std::string mesh;
  /// By the tensor-parallel rank, names of the parameters of each gradient
  /// bucket, in order: what a comm hook's state belongs to. Parts of uneven
  /// sizes and measured caps let tensor-parallel ranks differ. Empty before the
  /// first backward.
  std::vector<BucketNames> buckets;
  /// "libtorch" or "onednn": recipe.products, resolved.
  std::string products;
  /// What redistributions were planned by: recipe.cost_model and .links.
  std::string cost_model;
  LinksConfig links;
  /// The recipe as resolved, YAML.
  std::string recipe;
  /// The line of metrics.jsonl of the step that was saved, which is written
  /// after the save.
  std::string metrics_line;
};

/// JSON objects for SaveOptions.state and .layout. The state also holds what
/// follows from the recipe and the step (random numbers, schedule), so that a
/// comparison of two checkpoints compares it.
std::string to_json(const TrainState& state, const Recipe& recipe);
std::string to_json(const RunLayout& layout);

/// Throws: checkpoint::CheckpointError naming `source` if the text is not what
/// to_json() writes.
TrainState parse_train_state(
    const std::string& json,
    const std::string& source);
RunLayout parse_run_layout(const std::string& json, const std::string& source);

} // namespace weft::recipes
