#include "train/setup/loss.h"

#include <fmt/format.h>

#include "dtensor/kernels/cross_entropy.h"
#include "dtensor/scopes/scopes.h"

namespace weft::train {
namespace {

at::Tensor summed_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    dtensor::CrossEntropyOptions options = {}) {
  options.reduction = at::Reduction::Sum;
  // Every rank of the tp mesh has all targets of its replica.
  const dtensor::ImplicitReplication whole_targets;
  return dtensor::cross_entropy(
      logits.flatten(0, -2), targets.reshape(-1), options);
}

} // namespace

int64_t targets_per_step(const config::Recipe& recipe) {
  const int64_t samples = recipe.train.global_batch_size;
  return recipe.data.type != config::DataType::kDigits
             ? samples * recipe.data.sequence_length
             : samples;
}

std::string describe_batch(const config::Recipe& recipe) {
  const int64_t samples = recipe.train.global_batch_size;
  return recipe.data.type != config::DataType::kDigits
             ? fmt::format(
                   "{} x {} tokens", samples, recipe.data.sequence_length)
             : fmt::format("{} images", samples);
}

at::Tensor token_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    int64_t targets_in_all) {
  return summed_loss(logits, targets) / static_cast<double>(targets_in_all);
}

at::Tensor training_loss(
    const config::Recipe& recipe,
    models::Model& model,
    const at::Tensor& logits,
    const at::Tensor& targets) {
  const auto loss = summed_loss(
                        logits,
                        targets,
                        {.label_smoothing = recipe.train.label_smoothing,
                         .z_loss = recipe.train.z_loss}) /
                    static_cast<double>(targets_per_step(recipe));
  const auto auxiliary = model.auxiliary_loss();
  return auxiliary.defined()
             ? loss + auxiliary /
                          static_cast<double>(recipe.train.global_batch_size)
             : loss;
}

} // namespace weft::train
