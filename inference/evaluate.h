#pragma once

#include <cstdint>

#include "inference/eval_samples.h"
#include "inference/inference_model.h"
#include "mesh/device_mesh.h"
#include "models/model.h"

namespace weft::inference {

/// The result of an evaluation.
struct Evaluation {
  /// The mean cross entropy over all targets.
  double loss = 0;
  /// exp(loss).
  double perplexity = 0;
  int64_t targets = 0;
  int64_t samples = 0;
};

/// Computes the mean cross entropy of all targets of `samples`. Each replica
/// takes `batch_size` samples at a time; at the end some have fewer or none.
/// Logs the progress regularly.
/// Collective: all ranks of `mesh`, the mesh of the model's job; blocks.
/// Throws: NonFiniteError if the loss is not finite.
Evaluation evaluate(
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    const EvalSamples& samples,
    int64_t batch_size,
    const base::Logger& log);

} // namespace weft::inference
