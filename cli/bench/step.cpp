#include "cli/bench/benches.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "data/batch_loader.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/async_tp.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"
#include "mesh/device/device.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "train/metrics/metrics_log.h"
#include "train/setup/job_mesh.h"
#include "train/setup/loss.h"
#include "train/setup/products.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"

namespace weft::cli::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Checks before any measurement that the profile can be written.
void check_profile(const StepOptions& options) {
  if (options.profile.empty() || std::ofstream(options.profile)) {
    return;
  }
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "[bench] --profile {} cannot be written: {}. Name a file in a folder "
      "that exists.",
      options.profile,
      std::strerror(errno)));
}

double now_since_epoch() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Returns PEER_T0 if it is set, otherwise the start time of the outermost
// weftrun, otherwise now.
double launch_time() {
  for (const char* name : {"PEER_T0", "WEFT_LAUNCH_T0"}) {
    if (const auto text = mesh::env::get(name)) {
      return std::strtod(text->c_str(), nullptr);
    }
  }
  return now_since_epoch();
}

config::Recipe recipe_of(const StepOptions& options) {
  config::Recipe recipe;
  recipe.name = "bench";
  recipe.device = config::choice_of<config::Device>(options.device).value();
  recipe.mesh = {options.dp, options.tp};
  if (options.engine == "fsdp") {
    recipe.mesh = {.dp = 1, .tp = options.tp, .dp_shard = options.dp};
  }
  recipe.model.dim = options.dim;
  recipe.model.layers = options.layers;
  recipe.model.heads = options.heads;
  recipe.model.kv_heads = options.kv_heads ? options.kv_heads : options.heads;
  recipe.model.ffn_dim = options.ffn_dim ? options.ffn_dim : 4 * options.dim;
  recipe.model.vocab_size = options.vocab;
  recipe.tp.sequence_parallel = options.sequence_parallel != 0;
  if (options.engine == "ddp") {
    recipe.ddp.bucket_cap_mb = options.bucket_mb;
  }
  recipe.data.sequence_length = options.seq;
  recipe.data.paths = {"none"};
  recipe.train.dtype =
      config::choice_of<config::TrainDtype>(options.dtype).value();
  recipe.products =
      config::choice_of<config::Products>(options.products).value();
  recipe.train.global_batch_size = options.batch * options.dp;
  // These are the defaults of libtorch and of the peer's benchmark.
  recipe.optimizer.betas = {0.9, 0.999};
  recipe.optimizer.weight_decay = 0.01;
  recipe.origins.source = "weft bench step";
  return recipe;
}

mesh::World make_world(const StepOptions& options, const mesh::JobRank& job) {
  const bool is_cuda = options.device == "cuda";
  if (options.comm == "none") {
    if (is_cuda) {
      mesh::throw_error<mesh::UsageError>(
          "[bench] --comm none measures on the CPU only. Leave out --device "
          "cuda.");
    }
    return mesh::World::fake(job.rank, job.world_size);
  }
  mesh::WorldOptions world_options;
  if (is_cuda) {
    world_options.backend = "nccl";
  } else if (options.comm == "gloo") {
    world_options.backend = "gloo";
  }
  return mesh::World::from_env(std::move(world_options));
}

/// Seconds from the launch to the end of each phase of the start.
class StartPhases {
 public:
  explicit StartPhases(double launched_at) : launched_at_(launched_at) {}

  void end(const char* phase) {
    ends_.emplace_back(phase, now_since_epoch() - launched_at_);
  }
  double total_s() const { return ends_.back().second; }
  nlohmann::ordered_json to_json() const {
    nlohmann::ordered_json result;
    double begin = 0;
    for (const auto& [phase, end] : ends_) {
      result[phase] = rounded(end - begin, 1e3);
      begin = end;
    }
    return result;
  }

 private:
  double launched_at_;
  std::vector<std::pair<const char*, double>> ends_;
};

struct AsyncMode {
  const char* name;
  dtensor::AsyncTp mode;
};
constexpr std::array kAsyncModes{
    AsyncMode{"off", dtensor::AsyncTp::kOff},
    AsyncMode{"on", dtensor::AsyncTp::kOn},
    AsyncMode{"auto", dtensor::AsyncTp::kAuto}};

struct Timings {
  std::vector<double> losses;
  std::vector<double> step_ms;
  /// The ms from the last step inside a Join to the end of the Join.
  std::vector<double> join_end_ms;
};

class Training {
 public:
  Training(const StepOptions& options, train::TrainJob& job, StartPhases& start)
      : options_(options),
        job_(job),
        start_(start),
        generator_(at::make_generator<at::CPUGeneratorImpl>(
            1 +
            static_cast<uint64_t>(train::batch_mesh(job.mesh).coordinate(0)))) {
  }

  Timings run() {
    run_steps(options_.warmup);
    for (int64_t dim = 0; dim < job_.mesh.ndim(); ++dim) {
      job_.mesh.group(dim).barrier();
    }
    if (options_.async_tp > 0) {
      run_async_modes();
    } else if (options_.join == 0) {
      run_steps(options_.steps);
    }
    for (int64_t i = 0; options_.join > 0 && i < options_.steps;
         i += options_.join) {
      const bool joins = i / options_.join % 2 == 0;
      Clock::time_point last;
      job_.ddp->join(
          [&] {
            run_steps(options_.join);
            last = Clock::now();
          },
          /*divide_by_initial_world_size=*/true,
          joins);
      if (joins) {
        timings_.join_end_ms.push_back(ms_since(last));
      }
    }
    auto timings = timings_;
    if (!options_.profile.empty()) {
      profile_steps();
    }
    return timings;
  }

 private:
  static double ms_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin)
        .count();
  }

  void profile_steps() {
    namespace profiler = torch::autograd::profiler;
    constexpr int64_t kSteps = 3;
    if (job_.mesh.world().rank() != 0) {
      run_steps(kSteps);
      return;
    }
    std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
    if (options_.device == "cuda") {
      activities.insert(profiler::ActivityType::CUDA);
    }
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    run_steps(kSteps);
    profiler::disableProfiler()->save(options_.profile);
  }

  void run_async_modes() {
    for (int64_t i = 0; i < options_.steps; i += options_.async_tp) {
      const auto& mode =
          kAsyncModes[i / options_.async_tp % std::ssize(kAsyncModes)];
      dtensor::set_async_tp(job_.mesh, mode.mode);
      run_steps(options_.async_tp);
    }
  }

  void run_steps(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      run_step();
    }
  }

  void run_step() {
    const auto data = at::randint(
        0,
        options_.vocab,
        {options_.batch, options_.seq + 1},
        generator_,
        at::TensorOptions(at::kLong));
    const auto batch = data::to_device(
        {.input = data.slice(1, 0, -1), .target = data.slice(1, 1)},
        job_.mesh.world().device());
    const auto begin = Clock::now();
    auto loss = train::token_loss(
        job_.data_parallel->forward(batch.input),
        batch.target,
        options_.batch * options_.seq * options_.dp);
    loss.backward();
    job_.optimizer->step();
    job_.optimizer->zero_grad();
    // The loss is divided by the tokens of all replicas. The peer prints the
    // mean of its own replica.
    timings_.losses.push_back(
        loss.item<double>() * static_cast<double>(options_.dp));
    timings_.step_ms.push_back(ms_since(begin));
    if (timings_.step_ms.size() == 1) {
      start_.end("first_step");
    }
  }

  const StepOptions& options_;
  train::TrainJob& job_;
  StartPhases& start_;
  at::Generator generator_;
  Timings timings_;
};

nlohmann::ordered_json join_to_json(
    const StepOptions& options,
    const Timings& timings) {
  std::vector<double> with;
  std::vector<double> without;
  for (int64_t i = 0; i < options.steps; ++i) {
    const double ms = timings.step_ms[static_cast<size_t>(options.warmup + i)];
    (i / options.join % 2 == 0 ? with : without).push_back(ms);
  }
  const double ratio = median(with) / median(without);
  return {
      {"ms_per_step", rounded(median(with), 1e3)},
      {"ms_without", rounded(median(without), 1e3)},
      {"ratio", rounded(ratio, 1e4)},
      {"end_ms", rounded(median(timings.join_end_ms), 1e3)}};
}

/// Returns the step time of each async-TP mode, and its ratio to that of the
/// first mode, which has no overlap.
nlohmann::ordered_json async_to_json(
    const StepOptions& options,
    const Timings& timings) {
  std::array<std::vector<double>, kAsyncModes.size()> ms;
  for (int64_t i = 0; i < options.steps; ++i) {
    ms[i / options.async_tp % std::ssize(kAsyncModes)].push_back(
        timings.step_ms[static_cast<size_t>(options.warmup + i)]);
  }
  nlohmann::ordered_json result;
  for (size_t mode = 0; mode < kAsyncModes.size(); ++mode) {
    result[kAsyncModes[mode].name] = {
        {"ms_per_step", rounded(median(ms[mode]), 1e3)},
        {"over_off", rounded(median(ms[mode]) / median(ms[0]), 1e4)}};
  }
  return result;
}

std::string to_json(
    const StepOptions& options,
    const Timings& timings,
    const StartPhases& start,
    double peak_mb,
    std::optional<double> peak_device_mb) {
  const double ms =
      median({timings.step_ms.begin() + options.warmup, timings.step_ms.end()});
  nlohmann::ordered_json losses;
  for (size_t i = 0; i < std::min<size_t>(3, timings.losses.size()); ++i) {
    losses.push_back(rounded(timings.losses[i], 1e4));
  }
  losses.push_back(rounded(timings.losses.back(), 1e4));
  nlohmann::ordered_json result{
      {"peer", "weft"},
      {"torch", TORCH_VERSION},
      {"device", options.device},
      {"dtype", options.dtype},
      {"dp", options.dp},
      {"tp", options.tp},
      {"engine", options.comm == "none" ? "limit" : options.engine},
      {"ms_per_step", rounded(ms, 1e2)},
      {"tokens_per_s",
       std::llround(
           static_cast<double>(options.dp * options.batch * options.seq) / ms *
           1e3)},
      {"first_step_s", rounded(start.total_s(), 1e3)},
      {"start_s", start.to_json()},
      {"peak_rss_mb", std::llround(peak_mb)},
      {"losses", losses}};
  if (options.join > 0) {
    result["join"] = join_to_json(options, timings);
  }
  if (options.async_tp > 0) {
    result["async_tp"] = async_to_json(options, timings);
  }
  if (peak_device_mb) {
    result["peak_device_mb"] = std::llround(*peak_device_mb);
  }
  return base::json_text(result);
}

} // namespace

std::optional<std::string> run_step(const StepOptions& options) {
  check_profile(options);
  StartPhases start(launch_time());
  start.end("process");
  at::set_num_threads(static_cast<int>(options.threads));
  auto recipe = recipe_of(options);
  const auto job_rank = mesh::current_job_rank();
  train::validate(recipe, job_rank.world_size);
  train::resolve_products(recipe);
  const auto world = make_world(options, job_rank);
  start.end("rendezvous");
  const auto mesh = train::make_job_mesh(recipe, world);
  start.end("groups");
  auto job = train::make_train_job(recipe, mesh);
  start.end("model");
  const auto timings = Training(options, job, start).run();
  auto peak = at::full({1}, train::peak_rss_mb(), at::kDouble);
  world.group().all_reduce(peak, mesh::ReduceOp::kMax, "peak_rss_mb").wait();
  if (world.rank() != 0) {
    return std::nullopt;
  }
  return to_json(
      options,
      timings,
      start,
      peak.item<double>(),
      mesh::peak_device_mb(world.device()));
}

std::optional<std::string> run_startup(StepOptions options) {
  options.warmup = 0;
  options.steps = 1;
  const auto step = run_step(options);
  if (!step) {
    return std::nullopt;
  }
  const auto all = base::parse_json<nlohmann::ordered_json>(*step);
  nlohmann::ordered_json result{{"bench", "startup"}};
  for (const char* key :
       {"torch", "dp", "tp", "first_step_s", "start_s", "peak_rss_mb"}) {
    result[key] = all.at(key);
  }
  return base::json_text(result);
}

} // namespace weft::cli::bench
