#include "cli/bench/benches.h"

#include <cmath>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "ddp/distributed_data_parallel.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

using torch::nn::Sequential;

Sequential make_model(int64_t layers, int64_t width) {
  const at::NoGradGuard no_grad;
  Sequential model;
  for (int64_t i = 0; i < layers; ++i) {
    torch::nn::Linear layer(width, width);
    // With this deviation, activations and gradients keep their magnitude over
    // the layers.
    layer->weight.normal_(0, 1 / std::sqrt(static_cast<double>(width)));
    model->push_back(layer);
  }
  return model;
}

template <class Model>
double backward_ms(
    Model& model,
    torch::nn::Module& module,
    const at::Tensor& input,
    const mesh::DeviceMesh& mesh,
    bool keep_gradients) {
  module.zero_grad(/*set_to_none=*/!keep_gradients);
  const at::Tensor loss = model->forward(input).sum();
  mesh.group("dp").barrier();
  return microseconds([&] { loss.backward(); }) / 1e3;
}

struct Times {
  std::vector<double> plain, ddp, ratio;
};

Times measure(
    const ReducerOptions& options,
    const mesh::DeviceMesh& mesh,
    int64_t width) {
  auto plain = make_model(options.layers, width);
  auto replica = make_model(options.layers, width);
  auto ddp =
      std::make_unique<ddp::DistributedDataParallel<torch::nn::SequentialImpl>>(
          replica,
          mesh,
          ddp::DistributedDataParallelOptions{
              .bucket_cap_mb = options.bucket_mb});
  const auto input = at::randn({options.batch, width});
  const auto time_plain = [&] {
    return backward_ms(plain, *plain, input, mesh, options.keep_gradients);
  };
  const auto time_ddp = [&] {
    return backward_ms(ddp, *replica, input, mesh, options.keep_gradients);
  };
  Times times;
  for (int64_t i = 0; i < options.warmup + options.rounds; ++i) {
    // The order alternates, because the second one finds a different state of
    // the caches.
    const bool is_plain_first = i % 2 == 0;
    double plain_ms = is_plain_first ? time_plain() : 0;
    const double ddp_ms = time_ddp();
    plain_ms = is_plain_first ? plain_ms : time_plain();
    if (i >= options.warmup) {
      times.plain.push_back(plain_ms);
      times.ddp.push_back(ddp_ms);
      times.ratio.push_back(ddp_ms / plain_ms);
    }
  }
  return times;
}

} // namespace

std::optional<std::string> run_reducer(const ReducerOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  const auto world = mesh::World::from_env();
  const auto mesh =
      mesh::DeviceMesh::create(world, {world.world_size()}, {"dp"});
  nlohmann::ordered_json result{
      {"peer", "weft"},
      {"bench", "reducer"},
      {"torch", TORCH_VERSION},
      {"dp", world.world_size()},
      {"parameters", 2 * options.layers},
      {"batch", options.batch},
      {"keep_gradients", options.keep_gradients}};
  for (const auto width : options.widths) {
    const auto times = measure(options, mesh, width);
    const auto key = "w" + std::to_string(width);
    result[key + "_plain_ms"] = rounded(median(times.plain), 1e4);
    result[key + "_ddp_ms"] = rounded(median(times.ddp), 1e4);
    result[key + "_ratio"] = rounded(median(times.ratio), 1e4);
  }
  return world.rank() == 0 ? std::optional(base::json_text(result))
                           : std::nullopt;
}

} // namespace weft::cli::bench
