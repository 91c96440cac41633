#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference/sampling.h"
#include "mesh/device_mesh.h"
#include "models/model.h"

namespace weft::recipes {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  /// Tokens that end a sample.
  std::vector<int64_t> eos = {};
  /// Else all is computed anew for each token.
  bool use_cache = true;
};

/// One continuation of a prompt.
struct Continuation {
  size_t prompt = 0;
  /// Its number among all, which its random numbers belong to.
  int64_t sample = 0;
  /// The eos token that ended it among them.
  std::vector<int64_t> tokens = {};
  bool ended = false;
};

/// Hears of each token of a sample, in order.
using OnToken = std::function<void(const Continuation&)>;

/// Continues each prompt `num_samples` times. Samples are numbered prompt by
/// prompt and shared among the replicas, which may get none; a replica takes
/// those of one prompt as a batch, so that prompts may differ in length.
/// Returns this replica's, in order.
/// Collective: all ranks of `mesh`, which has the dims "dp" and "tp", with the
/// same arguments but for `on_token`; blocks.
/// Throws: NonFiniteError as choose_token().
std::vector<Continuation> generate(
    Model& model,
    const mesh::DeviceMesh& mesh,
    std::span<const std::vector<int64_t>> prompts,
    int64_t num_samples,
    const GenerationOptions& options,
    const OnToken& on_token);

/// Everybody's, in order, on every rank.
/// Collective: all ranks of `mesh`; blocks.
std::vector<Continuation> gather_continuations(
    const mesh::DeviceMesh& mesh,
    const std::vector<Continuation>& own);

} // namespace weft::recipes
