#include "cli/bench/benches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

constexpr int kRandomRounds = 15;

using Op = std::function<at::Tensor(const at::Tensor&)>;

struct RandomCase {
  const char* name;
  Op op;
};

std::vector<RandomCase> fills() {
  return {
      {"uniform", [](const auto& x) { return x.uniform_(); }},
      {"normal", [](const auto& x) { return x.normal_(); }},
      {"rand_like", [](const auto& x) { return at::rand_like(x); }},
      {"randn_like", [](const auto& x) { return at::randn_like(x); }},
      {"bernoulli", [](const auto& x) { return x.bernoulli_(0.9); }},
      {"dropout", [](const auto& x) { return at::dropout(x, 0.1, true); }},
      {"exponential", [](const auto& x) { return x.exponential_(); }},
      {"geometric", [](const auto& x) { return x.geometric_(0.3); }},
      {"cauchy", [](const auto& x) { return x.cauchy_(); }},
      {"log_normal", [](const auto& x) { return x.log_normal_(); }},
      {"random", [](const auto& x) { return x.random_(1000); }},
  };
}

// Returns the ops that take probabilities. They draw one number per element or
// one choice per row.
std::vector<RandomCase> draws() {
  return {
      {"bernoulli_tensor", [](const auto& p) { return at::bernoulli(p); }},
      {"poisson", [](const auto& p) { return at::poisson(p); }},
      {"multinomial", [](const auto& p) { return at::multinomial(p, 1); }},
  };
}

} // namespace

std::string run_random() {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  const auto mesh =
      mesh::DeviceMesh::create(mesh::World::fake(0, 2), {2}, {"dp"});
  const auto plain = at::rand({1024, 1024});
  const auto placed =
      dtensor::from_local(plain.clone(), mesh, {dtensor::Replicate()});
  nlohmann::ordered_json json{{"bench", "random"}, {"elements", plain.numel()}};
  const auto time = [&](const RandomCase& a_case) {
    std::vector<double> local;
    std::vector<double> dtensor;
    for (int round = 0; round < kRandomRounds; ++round) {
      local.push_back(microseconds([&] { a_case.op(plain); }));
      dtensor.push_back(microseconds([&] { a_case.op(placed); }));
    }
    const std::string name = a_case.name;
    json[name + "_local_us"] = std::round(median(local));
    json[name + "_dtensor_us"] = std::round(median(dtensor));
  };
  // The draws come first, because the fills overwrite the probabilities.
  std::ranges::for_each(draws(), time);
  std::ranges::for_each(fills(), time);
  return base::json_text(json);
}

} // namespace weft::cli::bench
