// What watching over a run finds, and what it costs: weftrun --nproc-per-node N
// -- integration_watch_bench MODE RECIPE COUNT SEED [key=value ...]. Rank 0
// prints one line of JSON. MODE is
//   flips      COUNT mantissa bits of weights, a short run each
//   gradients  COUNT mantissa bits of reduced gradients
//   cost       COUNT pairs of steps, with and without the integrity check in
//   turn checks     COUNT calls' worth of what is noted of each collective, and
//   what
//              the threads that watch take beside COUNT / 100 steps
//   straggler  COUNT steps; SEED is RANK:PHASE:PERCENT, by which one rank's
//              phase is made longer ("none:none:0": nobody's)
// bench/bit_flips.py and bench/stragglers.py run it.
#include <time.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "cli/bench/measure.h"
#include "data_parallel/parameters/module_state.h"
#include "dtensor/scopes/module_call.h"
#include "mesh/communicator/call.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/world.h"
#include "tests/integration/bit_flips.h"
#include "train/health/straggler.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

using Json = nlohmann::ordered_json;
using BenchClock = std::chrono::steady_clock;

/// Returns the CPU time of this thread, without other processes.
double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 +
         static_cast<double>(now.tv_nsec) * 1e-6;
}

double ms_since(BenchClock::time_point start) {
  return std::chrono::duration<double, std::milli>(BenchClock::now() - start)
      .count();
}

size_t parameters_of_recipe(
    const config::Recipe& recipe,
    const mesh::World& world) {
  train::Trainer trainer(recipe, world);
  return data_parallel::parameters_of(*trainer.job().model).size();
}

Json bench_flips(
    const config::Recipe& recipe,
    const mesh::World& world,
    int64_t count,
    uint64_t seed,
    bool gradients) {
  std::mt19937_64 random(seed);
  const auto tensors = parameters_of_recipe(recipe, world);
  std::map<int64_t, int64_t> steps_until;
  int64_t found = 0;
  int64_t right = 0;
  int64_t wrong = 0;
  Json missed = Json::array();
  for (int64_t i = 0; i < count; ++i) {
    auto flip =
        random_flip(random, world.world_size(), tensors, recipe.train.steps);
    if (gradients) {
      flip.where = Flip::Where::kReducedGradient;
    }
    const auto result = train_with_flip(recipe, world, {flip});
    if (result.message.empty()) {
      missed.push_back({flip.rank, flip.step, flip.tensor, flip.bit});
      continue;
    }
    ++found;
    ++steps_until[result.steps_until];
    right += result.named == flip.rank ? 1 : 0;
    wrong += result.named >= 0 && result.named != flip.rank ? 1 : 0;
  }
  Json by_steps;
  for (const auto& [steps, times] : steps_until) {
    by_steps[std::to_string(steps)] = times;
  }
  return {
      {"flips", count},
      {"found", found},
      {"named_right", right},
      {"named_wrong", wrong},
      {"steps_until", by_steps},
      {"not_found", missed}};
}

Json bench_cost(
    const config::Recipe& recipe,
    const mesh::World& world,
    int64_t pairs) {
  constexpr int64_t kWarmup = 6;
  train::Trainer trainer(recipe, world);
  train::IntegrityChecker integrity_checker(
      recipe, trainer.job(), base::Logger());
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  int64_t step = 0;
  const auto timed = [&](bool watched) {
    trainer.set_integrity_checker(watched ? &integrity_checker : nullptr);
    if (watched) { // Not timed: what the step before would have hashed.
      integrity_checker.begin(trainer.state_after(step));
    }
    const auto start = BenchClock::now();
    trainer.train_step(step++);
    if (watched && static_cast<int64_t>(with.size()) %
                           std::max<int64_t>(recipe.integrity_check.every, 1) ==
                       0) {
      integrity_checker.check(trainer.state_after(step));
    }
    return ms_since(start);
  };
  while (step < kWarmup) {
    timed(step % 2 == 0);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const bool first = i % 2 == 0;
    const double a = timed(first);
    const double b = timed(!first);
    with.push_back(first ? a : b);
    without.push_back(first ? b : a);
    ratios.push_back(with.back() / without.back());
  }
  // By itself: what a step spends in it, while all ranks do the same.
  trainer.set_integrity_checker(nullptr);
  std::vector<double> alone;
  std::vector<double> compare;
  double seal_cpu = 0;
  double check_cpu = 0;
  const double step_cpu_start = cpu_ms();
  for (int64_t i = 0; i < 10; ++i) {
    trainer.train_step(step++);
  }
  const double step_cpu = (cpu_ms() - step_cpu_start) / 10;
  integrity_checker.begin(trainer.state_after(step));
  for (int64_t i = 0; i < pairs; ++i) {
    const auto state = trainer.state_after(step);
    const auto start = BenchClock::now();
    const auto cpu = cpu_ms();
    integrity_checker.before_update();
    integrity_checker.after_update(state);
    alone.push_back(ms_since(start));
    const auto check = BenchClock::now();
    const auto middle_cpu = cpu_ms();
    integrity_checker.check(state);
    compare.push_back(ms_since(check));
    seal_cpu += middle_cpu - cpu;
    check_cpu += cpu_ms() - middle_cpu;
  }
  return {
      {"pairs", pairs},
      {"with_ms", cli::bench::median(with)},
      {"without_ms", cli::bench::median(without)},
      {"ratio", cli::bench::median(ratios)},
      {"seal_ms", cli::bench::median(alone)},
      {"check_ms", cli::bench::median(compare)},
      {"step_cpu_ms", step_cpu},
      {"seal_cpu_ms", seal_cpu / static_cast<double>(pairs)},
      {"check_cpu_ms", check_cpu / static_cast<double>(pairs)}};
}

/// What the threads that mesh/watchdog/ has in this process have run for.
double watch_threads_ms() {
  double sum = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "weft_listen" || name == "weft_watch") {
      double ns = 0;
      std::ifstream(task.path() / "schedstat") >> ns;
      sum += ns * 1e-6;
    }
  }
  return sum;
}

/// Times one collective: its entry, with the hash that ranks compare.
double bookkeeping_ms(int64_t calls) {
  mesh::FlightRecorder flight_recorder;
  const auto tensor = at::empty({64, 64});
  const double start = cpu_ms();
  for (int64_t i = 0; i < calls; ++i) {
    auto call =
        mesh::make_call("all_reduce", "model.layers.0.wq.weight", tensor);
    call.identity = mesh::identity_of(call);
    const auto sequence = flight_recorder.begin(std::move(call));
    flight_recorder.begin_wait(sequence);
    flight_recorder.end_wait(sequence);
    flight_recorder.end(sequence);
  }
  return (cpu_ms() - start) / static_cast<double>(calls);
}

Json bench_checks(
    const config::Recipe& recipe,
    const mesh::World& world,
    int64_t calls) {
  constexpr int64_t kWarmup = 6;
  const int64_t steps = std::max<int64_t>(calls / 100, 1);
  train::Trainer trainer(recipe, world);
  const auto called = [&] {
    uint64_t sum = 0;
    for (const std::string dim : {"dp", "tp"}) {
      sum += trainer.job().mesh.group(dim).flight_recorder().next_sequence();
    }
    return static_cast<double>(sum);
  };
  int64_t step = 0;
  while (step < kWarmup) {
    trainer.train_step(step++);
  }
  const double called_before = called();
  const double watched_before = watch_threads_ms();
  const double cpu_before = cpu_ms();
  for (int64_t i = 0; i < steps; ++i) {
    trainer.train_step(step++);
  }
  const auto per_step = [&](double sum) {
    return sum / static_cast<double>(steps);
  };
  const double step_cpu = per_step(cpu_ms() - cpu_before);
  const double watch_cpu = per_step(watch_threads_ms() - watched_before);
  const double calls_a_step = per_step(called() - called_before);
  const double call_cpu = bookkeeping_ms(calls);
  return {
      {"steps", steps},
      {"step_cpu_ms", step_cpu},
      {"calls_a_step", calls_a_step},
      {"call_us", call_cpu * 1e3},
      {"watch_threads_ms", watch_cpu},
      {"percent", 100 * (calls_a_step * call_cpu + watch_cpu) / step_cpu}};
}

/// Makes a phase of one rank longer by a share of what the rank's step took
/// lately, waiting for others left out.
class Slower {
 public:
  /// `parts`: how often forward and backward run in a step.
  Slower(
      train::Trainer& trainer,
      const std::string& text,
      int64_t rank,
      int64_t parts) {
    const auto colon = text.find(':');
    const auto second = text.find(':', colon + 1);
    phase_ = text.substr(colon + 1, second - colon - 1);
    share_ = std::stod(text.substr(second + 1)) / 100;
    if (text.substr(0, colon) != std::to_string(rank)) {
      share_ = 0;
    }
    if (phase_ != "other") {
      share_ /= static_cast<double>(parts);
    }
    const auto parameters = data_parallel::parameters_of(*trainer.job().model);
    if (phase_ == "backward") {
      parameters.back().tensor.register_hook(
          [this](const at::Tensor&) { rest(); });
    } else if (phase_ == "forward") {
      for (const auto& item : trainer.job().model->named_modules()) {
        if (item.key().ends_with("layers.0")) {
          dtensor::module_hooks(*item.value())
              .before.emplace_back([this](std::vector<at::Tensor>&) {
                if (at::GradMode::is_enabled()) {
                  rest();
                }
              });
        }
      }
    }
  }
  /// `busy_ms`: of a step, on this rank.
  void set_busy(double busy_ms) { busy_ms_ = busy_ms; }
  void between_steps() {
    if (phase_ == "other") {
      rest();
    }
  }

 private:
  void rest() const {
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::milli>(busy_ms_ * share_));
  }
  std::string phase_;
  double share_ = 0;
  double busy_ms_ = 0;
};

Json bench_straggler(
    const config::Recipe& recipe,
    const mesh::World& world,
    int64_t steps,
    const std::string& slower) {
  constexpr int64_t kSettle = 40;
  train::Trainer trainer(recipe, world);
  Json said = Json::array();
  int64_t step = 0;
  train::StragglerMonitor watch(
      recipe,
      trainer.job().mesh,
      base::Logger({.write = [&](const std::string& line) {
        said.push_back({step + 1 - kSettle, line});
      }}));
  trainer.set_phase_clock(watch.clock());
  Slower slow(trainer, slower, world.rank(), train::accumulation_steps(recipe));
  std::vector<double> busy;
  const auto start = BenchClock::now();
  for (; step < steps + kSettle; ++step) {
    const auto metrics = trainer.train_step(step);
    if (step < kSettle) {
      busy.push_back(metrics.step_ms - metrics.comm_ms);
    } else {
      slow.set_busy(cli::bench::median(busy));
      slow.between_steps();
    }
    watch.step_done();
  }
  return {
      {"steps", steps},
      {"slower", slower},
      {"busy_ms", cli::bench::median(busy)},
      {"step_ms", ms_since(start) / static_cast<double>(step)},
      {"seconds", ms_since(start) / 1e3},
      {"said", said}};
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("usage: MODE RECIPE COUNT SEED [key=value ...]\n", stderr);
    return 2;
  }
  const std::string mode = argv[1];
  const std::vector<std::string> overrides(argv + 5, argv + argc);
  auto recipe = train::load_recipe(argv[2], overrides);
  const auto world = mesh::World::from_env();
  train::validate(recipe, world.world_size());
  torch::set_num_threads(1);
  const int64_t count = std::stoll(argv[3]);
  Json result;
  if (mode == "cost") {
    result = bench_cost(recipe, world, count);
  } else if (mode == "checks") {
    result = bench_checks(recipe, world, count);
  } else if (mode == "straggler") {
    result = bench_straggler(recipe, world, count, argv[4]);
  } else {
    result = bench_flips(
        recipe, world, count, std::stoull(argv[4]), mode == "gradients");
  }
  if (world.rank() == 0) {
    std::cout << result.dump() << std::endl;
  }
  return 0;
}

} // namespace
} // namespace weft::integration

int main(int argc, char** argv) {
  return weft::integration::run(argc, argv);
}
