#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/setup/train_job.h"
#include "train/store/train_state.h"

namespace weft::train {

/// A tensor of a run's state that may be replicated on other ranks.
struct StateTensor {
  /// The name: "model.norm.weight", "exp_avg of model.norm.weight".
  std::string name;
  at::Tensor tensor;
  /// The dims of the job's mesh along which the tensor is replicated. See
  /// ddp::ReplicatedHash.
  uint32_t mesh_dims = 0;
};

/// Returns the weights, the optimizer's state, the EMA once it has begun, and
/// the buffers that follow from the config. The result shares memory with the
/// job. State that each replica has for itself is left out: gradients, the
/// state of a comm hook, and buffers that the model changes in forward(), which
/// checkpoints take from the first replica.
std::vector<StateTensor> replicated_tensors(TrainJob& job);

/// A number of a run's state that is identical on all ranks.
struct StateNumber {
  const char* name = "";
  int64_t value = 0;
};

/// Returns steps, samples, tokens, the learning rate and the state of random
/// numbers.
std::vector<StateNumber> replicated_numbers(
    TrainJob& job,
    const config::Recipe& recipe,
    const TrainState& state);

} // namespace weft::train
