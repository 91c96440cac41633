#pragma once

#include <cstdint>

#include "inference/eval_samples.h"
#include "inference/inference_model.h"
#include "mesh/device_mesh.h"
#include "models/model.h"

namespace weft::recipes {

/// How well a model knows samples.
struct Evaluation {
  /// The mean over all targets.
  double loss = 0;
  /// exp(loss).
  double perplexity = 0;
  int64_t targets = 0;
  int64_t samples = 0;
};

/// The mean cross entropy of all targets of `samples`. Replicas take
/// `batch_size` samples at a time, one after the other; at the end some have
/// fewer, or none. `log_line` hears now and then how far it is.
/// Collective: all ranks of `mesh`, which has the dims "dp" and "tp"; blocks.
/// Throws: NonFiniteError if the loss is not a finite number.
Evaluation evaluate(
    Model& model,
    const mesh::DeviceMesh& mesh,
    const EvalSamples& samples,
    int64_t batch_size,
    const LogLine& log_line);

} // namespace weft::recipes
