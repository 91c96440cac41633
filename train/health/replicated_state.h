#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/setup/train_job.h"
#include "train/store/train_state.h"

namespace weft::recipes {

/// A tensor of a run's state, copies of which other ranks may have.
struct StateTensor {
  /// "model.norm.weight", "exp_avg of model.norm.weight".
  std::string name;
  at::Tensor tensor;
  /// Along which dims of the job's mesh: see ddp::ReplicatedHash.
  uint32_t mesh_dims = 0;
};

/// Weights, what the optimizer keeps of them, their average once it has begun,
/// and buffers that follow from the config. Shares memory. Without what a
/// replica has for itself: gradients, what a comm hook keeps, buffers that a
/// model changes in its forward, of which checkpoints hold the first replica's.
std::vector<StateTensor> replicated_tensors(TrainJob& job);

/// A number of a run's state that all ranks have.
struct StateNumber {
  const char* name = "";
  int64_t value = 0;
};

/// Steps, samples, tokens, the learning rate, random numbers.
std::vector<StateNumber> replicated_numbers(
    TrainJob& job,
    const Recipe& recipe,
    const TrainState& state);

} // namespace weft::recipes
