#include "tests/checkpoint/crash/crash_rank.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "checkpoint/load/load.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/failure.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Saver;
using checkpoint::StateDicts;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Long enough for a machine that does much else.
constexpr std::chrono::seconds kPatience(20);

struct Shape {
  std::vector<int64_t> sizes;
  Placements placements;
};

// Cut every way, evenly and not, with replicas, plain, and with no dims.
std::map<std::string, Shape> shapes(const CrashRun& run) {
  return {
      {"large", {{run.kib, 256}, {Replicate(), Shard(0)}}},
      {"uneven", {{7, 30}, {Shard(0), Shard(1)}}},
      {"columns", {{12, 5}, {Replicate(), Shard(1)}}},
      {"copied", {{40}, {Replicate(), Replicate()}}},
      {"number", {{}, {Replicate(), Replicate()}}}};
}

StateDicts on_mesh(const CrashRun& run, const mesh::DeviceMesh& mesh) {
  StateDicts dicts;
  for (const auto& [name, shape] : shapes(run)) {
    dicts["model"][name] = dtensor::distribute_tensor(
        at::zeros(shape.sizes), mesh, shape.placements, std::nullopt);
  }
  return dicts;
}

void fill(const StateDicts& dicts, int64_t value) {
  for (const auto& [name, tensor] : dicts.at("model")) {
    dtensor::to_local(tensor).fill_(static_cast<double>(value));
  }
}

class CrashRank {
 public:
  CrashRank(const CrashRun& run, const mesh::World& world)
      : run_(run),
        world_(world),
        dicts_(on_mesh(
            run,
            mesh::DeviceMesh::create(world, {2, 2}, {"dp", "tp"}))),
        saver_(
            run.checkpoints,
            {.world = world,
             .fsync = run.fsync,
             .keep = kCrashKeep,
             .piece_bytes = 16 << 10}) {}

  void save_sound(int64_t step) {
    Json result;
    try_save(step, result);
    if (result["save"] != "saved") {
      throw std::runtime_error(result.dump());
    }
  }

  Json report(const std::function<void()>& ready) {
    Json result;
    try_save(kCrashStep, result);
    ready();
    if (result["save"] != "cut off") {
      if (world_.rank() == 0 && !run_.ballast.empty()) {
        fs::remove(run_.ballast);
      }
      Json next;
      try_save(kCrashStep + 1, next);
      result["next"] = next;
    }
    return result;
  }

 private:
  void try_save(int64_t step, Json& result) {
    fill(dicts_, step);
    const auto start = Clock::now();
    try {
      if (step > kCrashStep) {
        world_.group().barrier();
      }
      if (run_.is_async) {
        saver_.save_async(dicts_, {.step = step});
        fill(dicts_, -1);
        saver_.wait();
      } else {
        saver_.save(dicts_, {.step = step});
      }
      result["save"] = "saved";
      result["note"] = saver_.stats().note;
    } catch (const checkpoint::SaveError& error) {
      result["save"] = "refused";
      result["error"] = mesh::message_of(error);
    } catch (const std::exception& error) {
      result["save"] = "cut off";
      result["error"] = mesh::message_of(error);
    }
    result["seconds"] =
        std::chrono::duration<double>(Clock::now() - start).count();
  }

  CrashRun run_;
  mesh::World world_;
  StateDicts dicts_;
  Saver saver_;
};

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

mesh::World join(int rank, int port) {
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(kCrashRanks));
  set("LOCAL_WORLD_SIZE", std::to_string(kCrashRanks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  mesh::WorldOptions options;
  options.timeout = kPatience;
  return mesh::World::from_env(options);
}

StateDicts zeros(const CrashRun& run) {
  StateDicts dicts;
  for (const auto& [name, shape] : shapes(run)) {
    dicts["model"][name] = at::zeros(shape.sizes);
  }
  return dicts;
}

// Damage, and values that are not all of the folder's own step.
void check_step(
    const CrashRun& run,
    const checkpoint::StepFolder& step,
    Json& problems) {
  for (const auto& damage : checkpoint::verify(step.path)) {
    problems.push_back(
        fmt::format("step {}: {}", step.step, to_string(damage)));
  }
  try {
    const auto dicts = zeros(run);
    checkpoint::load(step.path, dicts);
    for (const auto& [name, tensor] : dicts.at("model")) {
      if (!tensor.eq(static_cast<double>(step.step)).all().item<bool>()) {
        problems.push_back(fmt::format(
            "step {}: {} has values of another step", step.step, name));
      }
    }
  } catch (const std::exception& error) {
    problems.push_back(
        fmt::format("step {}: {}", step.step, mesh::message_of(error)));
  }
}

// A run that starts again cleans up and saves on.
void save_on(const CrashRun& run, Json& problems) {
  const auto dicts = zeros(run);
  for (const auto& [name, tensor] : dicts.at("model")) {
    tensor.fill_(kNextRunStep);
  }
  Saver saver(run.checkpoints, {.fsync = run.fsync});
  saver.save(dicts, {.step = kNextRunStep});
  check_step(
      run,
      {kNextRunStep, checkpoint::step_path(run.checkpoints, kNextRunStep)},
      problems);
}

} // namespace

std::string run_crash_rank(
    const CrashRun& run,
    int rank,
    int port,
    const std::function<void()>& ready) {
  at::set_num_threads(1);
  const auto world = join(rank, port);
  std::optional<checkpoint::StoreLock> lock;
  if (rank == 0) {
    lock.emplace(run.checkpoints);
  }
  CrashRank self(run, world);
  for (int64_t step = 1; step < kCrashStep; ++step) {
    self.save_sound(step);
  }
  ready();
  return self.report(ready).dump();
}

std::string check_after_crash(const CrashRun& run) {
  at::set_num_threads(1);
  Json result;
  Json problems = Json::array();
  result["names"] = Json::array();
  result["steps"] = Json::array();
  try {
    for (const auto& entry : checkpoint::Folder::open(run.checkpoints).list()) {
      result["names"].push_back(entry.name);
    }
    const auto latest = checkpoint::read_latest(run.checkpoints);
    result["latest"] = latest.value_or(-1);
    for (const auto& step : checkpoint::list_steps(run.checkpoints)) {
      result["steps"].push_back(step.step);
      check_step(run, step, problems);
    }
    const checkpoint::StoreLock lock(run.checkpoints);
    checkpoint::remove_temporaries(run.checkpoints);
    for (const auto& entry : checkpoint::Folder::open(run.checkpoints).list()) {
      if (entry.name.starts_with(".tmp-")) {
        problems.push_back(entry.name + " cannot be cleaned up");
      }
    }
    if (run.ballast.empty()) {
      save_on(run, problems);
    }
  } catch (const std::exception& error) {
    problems.push_back("the next start: " + mesh::message_of(error));
  }
  result["problems"] = problems;
  return result.dump();
}

} // namespace weft::test
