#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference/sampling.h"
#include "mesh/device_mesh.h"
#include "models/model.h"

namespace weft::inference {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  /// The tokens that end a sample.
  std::vector<int64_t> eos = {};
  /// Caches keys and values. If false, every token is computed from scratch.
  bool use_cache = true;
};

/// One continuation of a prompt.
struct Continuation {
  size_t prompt = 0;
  /// The number among all samples, which selects its random numbers.
  int64_t sample = 0;
  /// The tokens, including the eos token that ended it.
  std::vector<int64_t> tokens = {};
  bool ended = false;
};

/// Called for each token of a sample, in order.
using OnToken = std::function<void(const Continuation&)>;

/// Continues each prompt `num_samples` times. Samples are numbered prompt by
/// prompt and divided among the replicas, some of which may get none; a replica
/// batches the samples of one prompt, so prompts may differ in length. Returns
/// this replica's samples in order.
/// Collective: all ranks of `mesh`, the mesh of the model's job, with equal
/// arguments except `on_token`; blocks.
/// Throws: NonFiniteError like choose_token().
std::vector<Continuation> generate(
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    std::span<const std::vector<int64_t>> prompts,
    int64_t num_samples,
    const GenerationOptions& options,
    const OnToken& on_token);

/// Returns the samples of all replicas, in order, on every rank.
/// Collective: all ranks of `mesh`; blocks.
std::vector<Continuation> gather_continuations(
    const mesh::DeviceMesh& mesh,
    const std::vector<Continuation>& own);

} // namespace weft::inference
