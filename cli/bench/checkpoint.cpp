#include "cli/bench/benches.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/store/store.h"
#include "cli/bench/measure.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSide = 1024; // A tensor of 4 MiB.
constexpr int kTries = 2;
constexpr double kMib = 1 << 20;

double seconds(const std::function<void()>& act) {
  const auto start = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - start).count();
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

// Adds the times of a plain write and of a memcpy of the same size, which are
// lower limits of a save.
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

// Returns the time of a matmul, which stands for the training step during an
// asynchronous save.
double compute() {
  static const auto a = at::randn({512, 512});
  return seconds([] { at::mm(a, a); });
}

class CheckpointBench {
 public:
  CheckpointBench(const mesh::World& world, const CheckpointOptions& options)
      : world_(world),
        folder_(options.folder),
        layers_(std::max<int64_t>(options.mb / 3 / 4, 1)) {
    const int64_t n = world.world_size();
    const int64_t dp = n == 1 ? 1 : 2;
    mesh_ = mesh::DeviceMesh::create(world, {dp, n / dp}, {"dp", "tp"});
  }

  std::optional<std::string> run() {
    using dtensor::Replicate;
    using dtensor::Shard;
    const int64_t mb = 3 * layers_ * 4;
    result_["mb"] = mb;
    auto state = make_state(mesh_, {Replicate(), Shard(0)}, layers_);
    time_saves("save", state, true);
    time_async(state);
    // This save comes last, so that the loaded files are in the page cache, as
    // in the peer's benchmark.
    time_saves("save", state, false);
    time_loads("load_same", "load", state, false);
    time_loads("load_same_all_or_nothing", "load_all_or_nothing", state, true);
    state.clear();
    state = make_state(mesh_, {Shard(0), Shard(1)}, layers_);
    time_loads("load_reshard", "load_reshard", state, false);
    if (world_.rank() != 0) {
      return std::nullopt;
    }
    add_floors(result_, folder_, mb);
    fs::remove_all(folder_);
    return base::json_text(result_);
  }

 private:
  double timed(const std::function<void()>& act) {
    world_.group().barrier();
    return seconds([&] {
      act();
      world_.group().barrier();
    });
  }

  double reduced(double value, mesh::ReduceOp op) {
    auto number = at::full({1}, value, at::kDouble);
    world_.group().all_reduce(number, op, "measurement").wait();
    return number.item<double>();
  }
  double sum(double value) { return reduced(value, mesh::ReduceOp::kSum); }
  double most(double value) { return reduced(value, mesh::ReduceOp::kMax); }

  void add_peak(const std::string& what, const std::function<void()>& act) {
    reset_peak();
    const int64_t before = status_bytes("VmRSS");
    act();
    result_[what + "_peak_mb"] =
        most(static_cast<double>(status_bytes("VmHWM") - before) / kMib);
  }

  void keep_newest() {
    world_.group().barrier();
    if (world_.rank() == 0) {
      checkpoint::prune_steps(folder_, 1);
    }
    world_.group().barrier();
  }

  void time_saves(
      const std::string& what,
      const checkpoint::StateDicts& state,
      bool sync) {
    checkpoint::Saver saver(folder_, {.world = world_, .fsync = sync});
    std::vector<double> times;
    add_peak(sync ? what : what + "_nosync", [&] {
      for (int i = 0; i < kTries; ++i) {
        times.push_back(timed([&] { saver.save(state, {.step = ++step_}); }));
        keep_newest();
      }
    });
    result_[what + (sync ? "_s" : "_nosync_s")] = std::ranges::min(times);
    result_["save_mb"] = sum(static_cast<double>(saver.stats().bytes) / kMib);
  }

  void time_loads(
      const std::string& time_name,
      const std::string& name,
      const checkpoint::StateDicts& state,
      bool all_or_nothing) {
    const auto newest = checkpoint::step_path(folder_, step_);
    std::vector<double> times;
    checkpoint::LoadStats stats;
    add_peak(name, [&] {
      for (int i = 0; i < kTries; ++i) {
        times.push_back(timed([&] {
          stats = checkpoint::load(
              newest, state, {.all_or_nothing = all_or_nothing});
        }));
      }
    });
    result_[time_name + "_s"] = std::ranges::min(times);
    result_[name + "_mb"] = sum(static_cast<double>(stats.bytes_read) / kMib);
  }

  void time_async(const checkpoint::StateDicts& state) {
    checkpoint::Saver saver(folder_, {.world = world_});
    saver.prepare_async(state); // A run does this at its start, too.
    std::vector<double> alone;
    for (int i = 0; i < 150; ++i) {
      alone.push_back(compute());
    }
    std::vector<double> blocks;
    std::vector<double> steps;
    add_peak("async", [&] {
      for (int i = 0; i < kTries + 1; ++i) {
        blocks.push_back(
            timed([&] { saver.save_async(state, {.step = ++step_}); }));
        while (saver.is_in_flight()) {
          steps.push_back(compute());
        }
        saver.wait();
        keep_newest();
      }
    });
    const auto stats = saver.stats();
    result_["async_block_first_s"] = blocks.front();
    result_["async_block_s"] =
        *std::min_element(blocks.begin() + 1, blocks.end());
    result_["async_blocked_s"] = most(stats.blocked.count());
    result_["async_total_s"] = most(stats.total.count());
    result_["step_s"] = median(alone);
    result_["async_step_s"] = steps.empty() ? 0.0 : median(steps);
    result_["async_staging_mb"] =
        most(static_cast<double>(stats.staging_bytes) / kMib);
  }

  mesh::World world_;
  fs::path folder_;
  int64_t layers_;
  mesh::DeviceMesh mesh_;
  int64_t step_ = 0;
  nlohmann::ordered_json result_;
};

} // namespace

std::optional<std::string> run_checkpoint(const CheckpointOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  // This must come before World::from_env(), because then another rank may
  // already have created the folder.
  if (fs::exists(options.folder)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "weft bench checkpoint: {} already exists. Give a new folder, because "
        "the benchmark deletes it at the end.",
        options.folder));
  }
  const auto world = mesh::World::from_env();
  const int64_t n = world.world_size();
  if (n != 1 && n % 2 != 0) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "weft bench checkpoint: got {} ranks, expected 1 or an even number n "
        "for a mesh of 2 x n/2",
        n));
  }
  return CheckpointBench(world, options).run();
}

} // namespace weft::cli::bench
