#include "ddp/reducer/auto_bucketing.h"

#include <algorithm>
#include <chrono>

#include <torch/torch.h>

namespace weft::ddp {
namespace {

constexpr int64_t kMinCap = int64_t{64} << 10;
constexpr int64_t kMaxProbed = int64_t{8} << 20;
constexpr int kProbes = 5;

/// Returns the time in ns of the fastest of kProbes reductions.
double
time_reduction(mesh::Communicator& group, int64_t bytes, c10::Device device) {
  const auto buffer = at::zeros({bytes / 4}, at::device(device));
  double fastest = 0;
  for (int i = 0; i < kProbes; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    group.all_reduce(buffer, mesh::ReduceOp::kSum, "ddp bucket probe").wait();
    const std::chrono::duration<double, std::nano> taken =
        std::chrono::steady_clock::now() - begin;
    fastest = i == 0 ? taken.count() : std::min(fastest, taken.count());
  }
  return fastest;
}

} // namespace

double simulate_backward(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost,
    int64_t cap) {
  double free_at = 0;
  int64_t bytes = 0;
  int64_t ready_ns = 0;
  const auto reduce = [&] {
    if (bytes > 0) {
      free_at = std::max(free_at, static_cast<double>(ready_ns)) +
                cost.start_ns + cost.ns_per_byte * static_cast<double>(bytes);
    }
    bytes = 0;
  };
  for (const auto& gradient : gradients) {
    if (bytes + gradient.bytes > cap) {
      reduce();
    }
    bytes += gradient.bytes;
    ready_ns = std::max(ready_ns, gradient.ready_ns);
  }
  reduce();
  return free_at;
}

int64_t choose_cap(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost) {
  int64_t total = 0;
  for (const auto& gradient : gradients) {
    total += gradient.bytes;
  }
  int64_t best = kMinCap;
  double best_end = simulate_backward(gradients, cost, best);
  for (int64_t cap = kMinCap * 2; cap < total * 2; cap *= 2) {
    const double end = simulate_backward(gradients, cost, cap);
    if (end <= best_end) {
      best = cap;
      best_end = end;
    }
  }
  return best;
}

int64_t agree_on_cap(
    const std::vector<GradientTiming>& gradients,
    mesh::Communicator& group,
    c10::Device device) {
  int64_t total = 0;
  for (const auto& gradient : gradients) {
    total += gradient.bytes;
  }
  const auto large = std::clamp(total, kMinCap, kMaxProbed);
  const double small_ns = time_reduction(group, 4, device);
  const double large_ns = time_reduction(group, large, device);
  const ReductionCost cost{
      .start_ns = small_ns,
      .ns_per_byte =
          std::max(0.0, large_ns - small_ns) / static_cast<double>(large)};
  const auto cap = at::full({1}, choose_cap(gradients, cost), at::kLong);
  const auto agreed = cap.to(device);
  group.broadcast(agreed, 0, "ddp bucket cap").wait();
  return agreed.is_meta() ? cap.item<int64_t>() : agreed.item<int64_t>();
}

} // namespace weft::ddp
