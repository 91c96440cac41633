#include "recipes/bench/dispatch.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/dtensor.h"
#include "mesh/world.h"

namespace weft::recipes::bench {
namespace {

constexpr int kCalls = 5000;
constexpr int kRounds = 15;

template <class Op>
double microseconds(const Op& op) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    op();
  }
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now() - start)
             .count() /
         kCalls;
}

// The two in turn, the best round of each: what the code costs without the
// machine's other business.
template <class Plain, class Distributed>
nlohmann::ordered_json compare(
    const Plain& plain,
    const Distributed& distributed) {
  double best_plain = microseconds(plain);
  double best_distributed = microseconds(distributed);
  for (int round = 0; round < kRounds; ++round) {
    best_plain = std::min(best_plain, microseconds(plain));
    best_distributed = std::min(best_distributed, microseconds(distributed));
  }
  const auto two_digits = [](double x) { return std::round(x * 1e2) / 1e2; };
  return {
      {"plain_us", two_digits(best_plain)},
      {"dtensor_us", two_digits(best_distributed)},
      {"overhead_us", two_digits(best_distributed - best_plain)}};
}

} // namespace

std::string run_dispatch() {
  at::set_num_threads(1);
  const auto world = mesh::World::fake(0, 2);
  const auto mesh = mesh::DeviceMesh::create(world, {2}, {"tp"});
  const auto a = at::randn({8, 8});
  const auto b = at::randn({8, 8});
  const auto da = dtensor::from_local(a, mesh, {dtensor::Shard(0)});
  const auto db = dtensor::from_local(b, mesh, {dtensor::Shard(0)});
  nlohmann::ordered_json result{{"bench", "dispatch"}};
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    result["add"] = compare([&] { out = a + b; }, [&] { out = da + db; });
    result["transpose"] = compare(
        [&] { out = a.transpose(0, 1); }, [&] { out = da.transpose(0, 1); });
  }
  const auto ga = a.clone().requires_grad_();
  const auto dga = dtensor::from_local(a.clone(), mesh, {dtensor::Shard(0)})
                       .requires_grad_();
  result["add_with_graph"] =
      compare([&] { out = ga + b; }, [&] { out = dga + db; });
  return result.dump();
}

} // namespace weft::recipes::bench
