#include "mesh/measure_links.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <Eigen/Dense>

namespace weft::mesh {
namespace {

constexpr int kWarmups = 2;
constexpr int kTimes = 7;
// The numbers of float elements that are timed. With the largest one, the
// latency hardly matters.
constexpr std::array<int64_t, 4> kCounts{256, 8192, 65536, 262144};
// The limits of a result. A result beyond them comes from a bad fit, not from
// the link.
constexpr double kMinLatencyUs = 0.1;
constexpr double kMaxLatencyUs = 1e5;
constexpr double kMinBandwidth = 1e-3;
constexpr double kMaxBandwidth = 1e5;

template <class Run>
double median_us(const Run& run) {
  std::array<double, kTimes> times{};
  for (int i = -kWarmups; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    if (i >= 0) {
      times[i] = std::chrono::duration<double, std::micro>(
                     std::chrono::steady_clock::now() - start)
                     .count();
    }
  }
  std::ranges::sort(times);
  return times[kTimes / 2];
}

std::vector<TimedCollective> time_group(
    Communicator group,
    const at::TensorOptions& options) {
  std::vector<TimedCollective> timed;
  for (const int64_t count : kCounts) {
    const int64_t part = count / group.size();
    const auto input = at::zeros({part}, options);
    const auto output = at::zeros({part * group.size()}, options);
    // item() ends after the collective, on a device too.
    const auto gather = [&] {
      group.all_gather(output, input, "measure links").wait();
      output[0].item<float>();
    };
    const auto reduce = [&] {
      group.all_reduce(output, ReduceOp::kSum, "measure links").wait();
      output[0].item<float>();
    };
    const auto bytes = static_cast<double>(output.nbytes());
    timed.push_back({Collective::kAllGather, bytes, median_us(gather)});
    timed.push_back({Collective::kAllReduce, bytes, median_us(reduce)});
  }
  return timed;
}

} // namespace

LinkCost fit_link_cost(
    const std::vector<TimedCollective>& timed,
    int64_t ranks,
    const LinkCost& otherwise) {
  const auto rows = static_cast<Eigen::Index>(timed.size());
  Eigen::MatrixX2d terms(rows, 2);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const auto& one = timed[i];
    // The columns are the microseconds per microsecond of latency and per
    // 1/(GB/s). Each row is divided by its measured time, so that the fit
    // minimizes relative errors.
    const LinkCost unit{.latency_us = 1, .bandwidth_gb_s = 1};
    terms(i, 0) = collective_us(one.kind, ranks, 0, unit) / one.us;
    terms(i, 1) = sent_bytes(one.kind, ranks, one.bytes) / 1e3 / one.us;
  }
  if (rows < 2 || ranks < 2 || !terms.allFinite()) {
    return otherwise;
  }
  const auto solver = terms.colPivHouseholderQr();
  if (solver.rank() < 2) {
    return otherwise;
  }
  const Eigen::Vector2d found = solver.solve(Eigen::VectorXd::Ones(rows));
  LinkCost cost;
  cost.latency_us = std::clamp(found(0), kMinLatencyUs, kMaxLatencyUs);
  cost.bandwidth_gb_s =
      found(1) > 0 ? std::clamp(1 / found(1), kMinBandwidth, kMaxBandwidth)
                   : kMaxBandwidth;
  return cost;
}

std::vector<LinkCost> measure_link_costs(const DeviceMesh& mesh) {
  const at::NoGradGuard no_grad;
  const auto root = mesh.root();
  std::vector<LinkCost> costs;
  for (int64_t i = 0; i < root.ndim(); ++i) {
    costs.push_back(link_cost(root, i));
    const bool talks = root.size(i) > 1 && root.group(i).backend() != "fake";
    if (talks) {
      const auto options =
          at::TensorOptions(root.world().device()).dtype(at::kFloat);
      costs[i] = fit_link_cost(
          time_group(root.group(i), options), root.size(i), costs[i]);
    }
  }
  if (root.size() > 1) {
    auto numbers = at::empty({root.ndim(), 2}, at::kDouble);
    for (int64_t i = 0; i < root.ndim(); ++i) {
      numbers[i][0] = costs[i].latency_us;
      numbers[i][1] = costs[i].bandwidth_gb_s;
    }
    numbers = numbers.to(root.world().device());
    root.world().group().broadcast(numbers, 0, "link costs").wait();
    numbers = numbers.cpu();
    for (int64_t i = 0; i < root.ndim(); ++i) {
      costs[i] = {numbers[i][0].item<double>(), numbers[i][1].item<double>()};
    }
  }
  for (int64_t i = 0; i < root.ndim(); ++i) {
    set_link_cost(root, root.mesh_dim_names()[i], costs[i]);
  }
  return costs;
}

} // namespace weft::mesh
