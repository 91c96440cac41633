#include "recipes/bench/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "dtensor/dtensor.h"
#include "mesh/error.h"
#include "mesh/world.h"

namespace weft::recipes::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSide = 1024; // A tensor of 4 MiB.
constexpr int kTries = 2;

double seconds(const std::function<void()>& act) {
  const auto start = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The best of several, each from one barrier to the next.
double best_of(
    const mesh::World& world,
    const std::function<void(int attempt)>& act) {
  double best = 1e30;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    world.group().barrier();
    best = std::min(best, seconds([&] {
                      act(attempt);
                      world.group().barrier();
                    }));
  }
  return best;
}

checkpoint::StateDicts make_state(
    const mesh::DeviceMesh& mesh,
    const dtensor::Placements& placements,
    int64_t layers) {
  const auto box = dtensor::local_box(
      dtensor::DTensorSpec(mesh, placements), {kSide, kSide});
  checkpoint::StateDicts dicts;
  for (const auto* part : {"model", "exp_avg", "exp_avg_sq"}) {
    for (int64_t i = 0; i < layers; ++i) {
      dicts[part][fmt::format("layers.{}.weight", i)] = dtensor::from_local(
          at::randn(box.sizes),
          mesh,
          placements,
          {.sizes = std::vector<int64_t>{kSide, kSide}});
    }
  }
  return dicts;
}

// What the disk and the memory do without any of this.
void add_floors(
    nlohmann::ordered_json& result,
    const fs::path& folder,
    int64_t mb) {
  const auto data = at::randn({mb << 18});
  const auto path = folder / "raw";
  result["raw_write_s"] = seconds([&] {
    std::ofstream file(path, std::ios::binary);
    file.write(
        static_cast<const char*>(data.const_data_ptr()),
        static_cast<std::streamsize>(data.nbytes()));
  });
  at::Tensor copy;
  result["memcpy_s"] = seconds([&] { copy = data.clone(); });
  fs::remove(path);
}

} // namespace

std::optional<std::string> run_checkpoint(const CheckpointOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  // Before any rank has made it.
  if (fs::exists(options.folder)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "weft bench checkpoint: {} exists. Name a folder that is not there: it "
        "is deleted at the end.",
        options.folder));
  }
  const auto world = mesh::World::from_env();
  const int64_t n = world.world_size();
  if (n != 1 && n % 2 != 0) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "weft bench checkpoint: {} ranks; 1 or an even number makes a mesh of "
        "2 x n/2",
        n));
  }
  const int64_t dp = n == 1 ? 1 : 2;
  const auto mesh = mesh::DeviceMesh::create(world, {dp, n / dp}, {"dp", "tp"});
  using dtensor::Replicate;
  using dtensor::Shard;
  const int64_t layers = std::max<int64_t>(options.mb / 3 / 4, 1);
  const fs::path folder = options.folder;

  nlohmann::ordered_json result;
  result["mb"] = 3 * layers * 4;
  auto state = make_state(mesh, {Replicate(), Shard(0)}, layers);
  result["save_s"] = best_of(world, [&](int attempt) {
    checkpoint::save(folder, state, {.step = attempt, .sync = true});
  });
  result["save_nosync_s"] = best_of(world, [&](int attempt) {
    checkpoint::save(folder, state, {.step = kTries + attempt, .sync = false});
  });
  const auto newest = checkpoint::step_path(folder, kTries);
  const auto load = [&](const checkpoint::StateDicts& dicts, bool staged) {
    return best_of(world, [&](int) {
      checkpoint::load(newest, dicts, {.all_or_nothing = staged});
    });
  };
  result["load_same_s"] = load(state, false);
  result["load_same_all_or_nothing_s"] = load(state, true);
  state = make_state(mesh, {Shard(0), Shard(1)}, layers);
  result["load_reshard_s"] = load(state, false);
  if (world.rank() != 0) {
    return std::nullopt;
  }
  add_floors(result, folder, 3 * layers * 4);
  fs::remove_all(folder);
  return result.dump();
}

} // namespace weft::recipes::bench
