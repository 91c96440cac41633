#include "cli/bench/benches.h"

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

torch::nn::Sequential build(const DeferredMemoryOptions& options) {
  const dtensor::DeferredInit scope;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < options.layers; ++i) {
    model->push_back(torch::nn::Linear(
        torch::nn::LinearOptions(options.dim, options.dim).bias(false)));
  }
  return model;
}

} // namespace

DeferredMemory measure_deferred_memory(const DeferredMemoryOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  const auto world = mesh::World::from_env();
  const auto mesh =
      mesh::DeviceMesh::create(world, {world.world_size()}, {"tp"});
  // Runs a small model first, so that memory that the first use allocates is
  // not attributed to the measured model.
  {
    auto warm = build({.layers = 1, .dim = 16, .threads = 1});
    dtensor::set_placements(warm->parameters()[0], mesh, {dtensor::Shard(0)});
    dtensor::materialize(*warm, 1);
  }
  world.group().barrier();
  reset_peak();
  const int64_t before = status_bytes("VmRSS");
  auto model = build(options);
  DeferredMemory result;
  result.rank = world.rank();
  result.world_size = world.world_size();
  for (const auto& parameter : model->parameters()) {
    dtensor::set_placements(parameter, mesh, {dtensor::Shard(0)});
    result.model_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  dtensor::materialize(*model, 1);
  auto growth = at::full({1}, status_bytes("VmHWM") - before, at::kLong);
  world.group()
      .all_reduce(growth, mesh::ReduceOp::kMax, "deferred memory")
      .wait();
  result.growth_bytes = growth.item<int64_t>();
  for (const auto& parameter : model->parameters()) {
    result.shard_bytes +=
        static_cast<int64_t>(dtensor::to_local(parameter.detach()).nbytes());
  }
  return result;
}

std::optional<std::string> run_deferred_memory(
    const DeferredMemoryOptions& options) {
  const auto result = measure_deferred_memory(options);
  if (result.rank != 0) {
    return std::nullopt;
  }
  constexpr double kMib = 1 << 20;
  nlohmann::ordered_json json;
  json["world_size"] = result.world_size;
  json["model_mb"] = static_cast<double>(result.model_bytes) / kMib;
  json["shard_mb"] = static_cast<double>(result.shard_bytes) / kMib;
  json["peak_growth_mb"] = static_cast<double>(result.growth_bytes) / kMib;
  json["growth_over_shard"] = result.ratio();
  return base::json_text(json);
}

} // namespace weft::cli::bench
