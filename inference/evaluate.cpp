#include "inference/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "data/batch_loader.h"
#include "mesh/error/error.h"
#include "train/setup/job_mesh.h"
#include "train/setup/loss.h"
#include "train/trainer.h"

namespace weft::inference {
namespace {

using EvalClock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBetweenLines(10);

// Returns the sum of the losses of the samples [first, first + batch_size), as
// far as they exist. Without any, the rank computes one sample and discards its
// loss, because all ranks must call a sharded model together.
double summed_loss_of(
    models::Model& model,
    const EvalSamples& samples,
    int64_t first,
    int64_t batch_size,
    c10::Device device) {
  const int64_t count =
      std::clamp<int64_t>(samples.count - first, 0, batch_size);
  std::vector<int64_t> numbers(
      static_cast<size_t>(std::max<int64_t>(count, 1)));
  std::iota(numbers.begin(), numbers.end(), count > 0 ? first : 0);
  const auto batch = data::to_device(samples.read(numbers), device);
  const auto loss =
      train::token_loss(model.forward(batch.input), batch.target, 1);
  return count > 0 ? loss.to(at::kDouble).item<double>() : 0;
}

double over_batch(const mesh::DeviceMesh& batch, double value) {
  auto total = at::full({1}, value, at::kDouble);
  batch.group(0).all_reduce(total, mesh::ReduceOp::kSum, "loss").wait();
  return total.item<double>();
}

} // namespace

Evaluation evaluate(
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    const EvalSamples& samples,
    int64_t batch_size,
    const base::Logger& log) {
  const at::NoGradGuard no_grad;
  const auto& world = mesh.world();
  const auto batch = train::batch_mesh(mesh);
  const int64_t own = batch.coordinate(0) * batch_size;
  const int64_t step = batch.size() * batch_size;
  double sum = 0;
  auto said = EvalClock::now();
  for (int64_t first = 0; first < samples.count; first += step) {
    sum += over_batch(
        batch,
        summed_loss_of(
            model, samples, first + own, batch_size, world.device()));
    if (world.rank() == 0 && EvalClock::now() - said > kBetweenLines) {
      said = EvalClock::now();
      log.info(fmt::format(
          "{} of {} samples",
          std::min(first + step, samples.count),
          samples.count));
    }
  }
  world.check();
  Evaluation result{
      .targets = samples.count * samples.targets, .samples = samples.count};
  result.loss = sum / static_cast<double>(result.targets);
  if (!std::isfinite(result.loss)) {
    mesh::throw_error<train::NonFiniteError>(fmt::format(
        "the loss is {}, because the weights or the model's outputs in this "
        "dtype are not finite.",
        result.loss));
  }
  result.perplexity = std::exp(result.loss);
  return result;
}

} // namespace weft::inference
