#include "cli/bench/benches.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "mesh/world.h"

// The DTensors are on a fake process group of two ranks, and the ops need no
// communication. So the benchmark measures the dispatcher and not a collective.

namespace weft::cli::bench {
namespace {

using dtensor::Replicate;
using dtensor::Shard;

constexpr int kDispatchRounds = 11;

class Results {
 public:
  explicit Results(std::string only) : only_(std::move(only)) {}

  bool wants(const std::string& op) const {
    return only_.empty() || only_ == op;
  }

  void add(const std::string& key, double us) {
    json_[key] = std::round(us * 1e3) / 1e3;
  }

  template <class Local, class Distributed>
  void compare(
      const std::string& op,
      const Local& local,
      const Distributed& distributed,
      int calls = 2000) {
    if (!wants(op)) {
      return;
    }
    std::vector<double> local_us;
    std::vector<double> dtensor_us;
    microseconds(local, calls / 10 + 1);
    microseconds(distributed, calls / 10 + 1);
    for (int round = 0; round < kDispatchRounds; ++round) {
      local_us.push_back(microseconds(local, calls));
      dtensor_us.push_back(microseconds(distributed, calls));
    }
    add(op + "_local_us", median(local_us));
    add(op + "_dtensor_us", median(dtensor_us));
  }

  /// Throws: mesh::UsageError if there is no op with the name `only_`.
  std::string dump() const {
    if (json_.size() == 1) {
      mesh::throw_error<mesh::UsageError>(
          "--only " + only_ +
          " is not an op. Run weft bench dispatch without --only to see the "
          "ops: they are the keys of its output, without the suffix _local_us");
    }
    return base::json_text(json_);
  }

 private:
  std::string only_;
  nlohmann::ordered_json json_{{"bench", "dispatch"}};
};

// A plain tensor, and a DTensor with the same local tensor.
struct Pair {
  at::Tensor local;
  at::Tensor dtensor;
};

Pair make_pair(
    const mesh::DeviceMesh& mesh,
    const dtensor::Placement& placement,
    at::IntArrayRef sizes,
    bool requires_grad = false) {
  const auto local = at::randn(sizes);
  Pair pair{
      local.clone(), dtensor::from_local(local.clone(), mesh, {placement})};
  pair.local.set_requires_grad(requires_grad);
  pair.dtensor.set_requires_grad(requires_grad);
  return pair;
}

void time_ops(const mesh::DeviceMesh& mesh, Results& results) {
  const at::NoGradGuard no_grad;
  const auto a = make_pair(mesh, Shard(0), {8, 8});
  const auto b = make_pair(mesh, Shard(0), {8, 8});
  const auto w = make_pair(mesh, Replicate(), {8, 8});
  const auto gain = make_pair(mesh, Replicate(), {8});
  at::Tensor out;
  results.compare(
      "add",
      [&] { out = a.local + b.local; },
      [&] { out = a.dtensor + b.dtensor; });
  results.compare(
      "mm",
      [&] { out = at::mm(a.local, w.local); },
      [&] { out = at::mm(a.dtensor, w.dtensor); });
  results.compare(
      "transpose",
      [&] { out = a.local.transpose(0, 1); },
      [&] { out = a.dtensor.transpose(0, 1); });
  results.compare(
      "norm",
      [&] { out = at::layer_norm(a.local, {8}, gain.local, gain.local); },
      [&] {
        out = at::layer_norm(a.dtensor, {8}, gain.dtensor, gain.dtensor);
      });
  if (!results.wants("from_local")) {
    return;
  }
  std::vector<double> rounds;
  for (int round = 0; round < kDispatchRounds; ++round) {
    rounds.push_back(microseconds(
        [&] { out = dtensor::from_local(a.local, mesh, {Shard(0)}); }, 2000));
  }
  results.add("from_local_us", median(rounds));
}

void time_recorded(const mesh::DeviceMesh& mesh, Results& results) {
  const auto a = make_pair(mesh, Shard(0), {8, 8}, true);
  const auto b = make_pair(mesh, Shard(0), {8, 8}, true);
  const auto w = make_pair(mesh, Replicate(), {8, 8}, true);
  at::Tensor out;
  results.compare(
      "add_grad",
      [&] { out = a.local + b.local; },
      [&] { out = a.dtensor + b.dtensor; });
  results.compare(
      "mm_grad",
      [&] { out = at::mm(a.local, w.local); },
      [&] { out = at::mm(a.dtensor, w.dtensor); });
}

// Measures linear() and its gradients: five ops and the autograd engine.
void time_linear(const mesh::DeviceMesh& mesh, Results& results) {
  const auto x = make_pair(mesh, Shard(0), {8, 8}, true);
  const auto w = make_pair(mesh, Replicate(), {8, 8}, true);
  const auto ones = make_pair(mesh, Shard(0), {8, 8});
  const auto step = [](const at::Tensor& input,
                       const at::Tensor& weight,
                       const at::Tensor& gradient) {
    const auto y = at::linear(input, weight);
    torch::autograd::grad({y}, {input, weight}, {gradient});
  };
  results.compare(
      "linear_forward_backward",
      [&] { step(x.local, w.local, ones.local); },
      [&] { step(x.dtensor, w.dtensor, ones.dtensor); },
      500);
}

struct AdamWState {
  std::vector<at::Tensor> parameters, gradients, first, second, steps;

  void step() {
    at::_fused_adamw_(
        parameters,
        gradients,
        first,
        second,
        {},
        steps,
        1e-3,
        0.9,
        0.999,
        1e-2,
        1e-8,
        false,
        false);
  }
};

void time_fused_optimizer(const mesh::DeviceMesh& mesh, Results& results) {
  constexpr int kTensors = 100;
  const at::NoGradGuard no_grad;
  AdamWState local;
  AdamWState distributed;
  for (int i = 0; i < kTensors; ++i) {
    for (auto list :
         {&AdamWState::parameters,
          &AdamWState::gradients,
          &AdamWState::first,
          &AdamWState::second}) {
      const auto pair = make_pair(mesh, Shard(0), {8, 8});
      (local.*list).push_back(pair.local);
      (distributed.*list).push_back(pair.dtensor);
    }
    local.second.back().abs_();
    distributed.second.back().abs_();
    const auto count = make_pair(mesh, Replicate(), {});
    local.steps.push_back(count.local.fill_(1));
    distributed.steps.push_back(count.dtensor.fill_(1));
  }
  results.compare(
      "fused_adamw_100",
      [&] { local.step(); },
      [&] { distributed.step(); },
      200);
}

// Measures a miss of the plan cache: each call has a value of alpha that no
// earlier call had.
void time_miss(const mesh::DeviceMesh& mesh, Results& results) {
  const at::NoGradGuard no_grad;
  const auto a = make_pair(mesh, Shard(0), {8, 8});
  at::Tensor out;
  double alpha = 1;
  results.compare(
      "miss",
      [&] { out = at::add(a.local, a.local, alpha += 1); },
      [&] { out = at::add(a.dtensor, a.dtensor, alpha += 1); });
}

} // namespace

std::string run_dispatch(const std::string& only) {
  at::set_num_threads(1);
  const auto world = mesh::World::fake(0, 2);
  const auto mesh = mesh::DeviceMesh::create(world, {2}, {"tp"});
  Results results(only);
  time_ops(mesh, results);
  time_recorded(mesh, results);
  time_linear(mesh, results);
  time_fused_optimizer(mesh, results);
  time_miss(mesh, results);
  return results.dump();
}

} // namespace weft::cli::bench
