#include "train/health/replicated_state.h"

#include <bit>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/replicas/replica_comparison.h"
#include "data_parallel/replicas/tensor_hash.h"
#include "dtensor/random/random_state.h"

namespace weft::train {
namespace {

using torch::optim::AdamWParamState;

const AdamWParamState* adamw_state(
    FusedAdamW& optimizer,
    const at::Tensor& parameter) {
  const auto& all = optimizer.state();
  const auto found = all.find(parameter.unsafeGetTensorImpl());
  return found == all.end()
             ? nullptr
             : static_cast<const AdamWParamState*>(found->second.get());
}

int64_t hash_of_optimizer_steps(TrainJob& job) {
  std::vector<int64_t> steps;
  for (const auto& group : job.optimizer->param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto* state = adamw_state(*job.optimizer, parameter);
      steps.push_back(state ? state->step() : 0);
    }
  }
  return data_parallel::hash_of(steps.data(), steps.size() * sizeof(int64_t));
}

} // namespace

std::vector<StateTensor> replicated_tensors(TrainJob& job) {
  std::vector<StateTensor> result;
  const auto dp = job.mesh["dp"];
  const auto add = [&](std::string name, const at::Tensor& tensor) {
    result.push_back(
        {.name = std::move(name),
         .tensor = tensor,
         .mesh_dims = data_parallel::replicated_mesh_dims(tensor, dp)});
  };
  const auto parameters = data_parallel::parameters_of(*job.model);
  for (const auto& item : parameters) {
    add(item.name, item.tensor);
  }
  const auto computed = job.model->computed_buffers();
  for (const auto& item : data_parallel::buffers_of(*job.model)) {
    if (computed.contains(item.name)) {
      add(item.name, item.tensor);
    }
  }
  if (job.average && job.average->has_begun()) {
    for (const auto& [name, tensor] : job.average->state_dict(job.mesh)) {
      add("the average of " + name, tensor);
    }
  }
  // The optimizer state comes last, because the first update creates it and the
  // other tensors keep their indices.
  for (const auto& item : parameters) {
    if (const auto* state = adamw_state(*job.optimizer, item.tensor)) {
      add("exp_avg of " + item.name, state->exp_avg());
      add("exp_avg_sq of " + item.name, state->exp_avg_sq());
    }
  }
  return result;
}

std::vector<StateNumber> replicated_numbers(
    TrainJob& job,
    const config::Recipe& recipe,
    const TrainState& state) {
  const auto random = dtensor::random_state(job.mesh);
  const double lr = job.optimizer->param_groups().at(0).options().get_lr();
  return {
      {"the step", state.step},
      {"the number of tokens done", state.tokens},
      {"the data cursor", state.next_sample},
      {"the number of steps skipped in a row", state.skipped_in_a_row},
      {"the learning rate", std::bit_cast<int64_t>(lr)},
      {"the seed", recipe.seed},
      {"the seed of random numbers", static_cast<int64_t>(random.seed)},
      {"the sequence of random numbers", static_cast<int64_t>(random.sequence)},
      {"the optimizer's step", hash_of_optimizer_steps(job)}};
}

} // namespace weft::train
