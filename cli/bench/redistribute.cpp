#include "cli/bench/benches.h"

#include <cmath>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

using dtensor::Partial;
using dtensor::Placement;
using dtensor::Replicate;
using dtensor::Shard;

constexpr int kMoveRounds = 5;
constexpr int64_t kColumns = 1024;

double median_us(
    const at::Tensor& dtensor,
    const Placement& to,
    int calls,
    mesh::Communicator& group) {
  const auto move = [&] {
    const auto moved = dtensor::redistribute(dtensor, {to});
    // Reading a value waits for the redistribution.
    dtensor::to_local(moved).view({-1})[0].item<float>();
  };
  group.barrier();
  microseconds(move, calls);
  std::vector<double> rounds;
  for (int round = 0; round < kMoveRounds; ++round) {
    rounds.push_back(microseconds(move, calls));
  }
  return median(std::move(rounds));
}

} // namespace

std::optional<std::string> run_redistribute() {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const auto world = mesh::World::from_env();
  const int64_t n = world.world_size();
  const auto mesh = mesh::DeviceMesh::create(world, {n}, {"tp"});
  auto group = world.group();
  nlohmann::ordered_json results{{"bench", "redistribute"}, {"ranks", n}};
  for (const int64_t mb : {1, 64}) {
    const int64_t rows = mb * (1 << 18) / kColumns;
    const auto on_mesh = [&](int64_t own_rows, const Placement& placement) {
      return dtensor::from_local(
          at::randn({own_rows, kColumns}), mesh, {placement});
    };
    const auto shard = on_mesh(rows / n, Shard(0));
    const auto whole = on_mesh(rows, Replicate());
    const auto pending = on_mesh(rows, Partial());
    const auto add =
        [&](const char* name, const at::Tensor& x, const Placement& to) {
          const double us = median_us(x, to, mb > 1 ? 5 : 20, group);
          results[std::string(name) + "_" + std::to_string(mb) + "mb_us"] =
              std::round(us * 100) / 100;
        };
    add("shard0_to_replicate", shard, Replicate());
    add("replicate_to_shard0", whole, Shard(0));
    add("shard0_to_shard1", shard, Shard(1));
    add("partial_to_replicate", pending, Replicate());
    add("partial_to_shard0", pending, Shard(0));
  }
  return world.rank() == 0 ? std::optional(base::json_text(results))
                           : std::nullopt;
}

} // namespace weft::cli::bench
