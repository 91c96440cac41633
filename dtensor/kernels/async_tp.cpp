#include "dtensor/kernels/async_tp.h"

#include <algorithm>
#include <mutex>
#include <optional>

namespace weft::dtensor {
namespace {

struct AsyncTpChoice {
  AsyncTp mode = AsyncTp::kAuto;
  std::optional<AsyncTpCosts> costs;
};

class AsyncTpState {
 public:
  void set(const AsyncTpChoice& choice) {
    const std::lock_guard lock(mutex_);
    choice_ = choice;
  }
  AsyncTpChoice get() const {
    const std::lock_guard lock(mutex_);
    return choice_;
  }

 private:
  mutable std::mutex mutex_;
  AsyncTpChoice choice_;
};

AsyncTpCosts costs_of(
    const mesh::DeviceMesh& mesh,
    const AsyncTpChoice& choice) {
  return choice.costs ? *choice.costs
                      : default_async_tp_costs(mesh.world().backend());
}

double part_us(const CommMatmul& product, int64_t parts) {
  return step_us(
      product.kind,
      product.ranks,
      product.bytes / static_cast<double>(parts),
      product.link);
}

// Returns the time of a gather in `parts` messages and the matmul. This rank
// multiplies its own rows first, then the rows of each message when it has
// arrived.
double overlapped_gather_us(
    const CommMatmul& product,
    int64_t parts,
    double product_us) {
  const double own = product_us / static_cast<double>(product.ranks);
  const double message = part_us(product, parts);
  double now = own;
  for (int64_t part = 1; part <= parts; ++part) {
    now = std::max(now, static_cast<double>(part) * message) +
          (product_us - own) / static_cast<double>(parts);
  }
  return now;
}

// Returns the time of the matmul and a reduce_scatter in `parts` messages. A
// message starts after its part of the matmul and after the previous message.
double overlapped_scatter_us(
    const CommMatmul& product,
    int64_t parts,
    double product_us) {
  const double piece = product_us / static_cast<double>(parts);
  const double message = part_us(product, parts);
  double sent = 0;
  for (int64_t part = 1; part <= parts; ++part) {
    sent = std::max(sent, static_cast<double>(part) * piece) + message;
  }
  return sent;
}

// The factor by which more chunks must reduce the predicted time. It is below
// 1, because costs are estimates.
constexpr double kWorthwhile = 0.97;
// The largest number of chunks. With more of them the smaller matmuls lose more
// time than the overlap saves.
constexpr int64_t kMaxParts = 8;

} // namespace

AsyncTpCosts default_async_tp_costs(std::string_view backend) {
  if (backend == "nccl") {
    return {.tflops = 400, .overlap = 1};
  }
  return {.tflops = 0.05, .overlap = 0};
}

void set_async_tp(const mesh::DeviceMesh& mesh, AsyncTp mode) {
  mesh.root().extension<AsyncTpState>().set({mode, std::nullopt});
}

void set_async_tp(
    const mesh::DeviceMesh& mesh,
    AsyncTp mode,
    const AsyncTpCosts& costs) {
  mesh.root().extension<AsyncTpState>().set({mode, costs});
}

AsyncTp async_tp(const mesh::DeviceMesh& mesh) {
  const auto choice = mesh.root().extension<AsyncTpState>().get();
  // On GPUs kAuto without explicit costs is off, because it was not measured
  // there.
  return choice.mode == AsyncTp::kAuto && !choice.costs &&
                 mesh.world().device().is_cuda()
             ? AsyncTp::kOff
             : choice.mode;
}

double comm_matmul_us(
    const CommMatmul& product,
    int64_t parts,
    const AsyncTpCosts& costs) {
  const double product_us = product.flops / (costs.tflops * 1e6);
  const double behind = part_us(product, 1) + product_us;
  if (parts == 0) {
    return behind;
  }
  const double beside = product.kind == StepKind::kAllGather
                            ? overlapped_gather_us(product, parts, product_us)
                            : overlapped_scatter_us(product, parts, product_us);
  const double more_messages =
      static_cast<double>(parts) * part_us(product, parts) -
      part_us(product, 1);
  return costs.overlap * beside +
         (1 - costs.overlap) * (behind + more_messages);
}

int64_t choose_num_chunks(
    const mesh::DeviceMesh& mesh,
    const CommMatmul& product,
    int64_t most) {
  const auto choice = mesh.root().extension<AsyncTpState>().get();
  if (choice.mode == AsyncTp::kOff) {
    return 0;
  }
  const bool forced = choice.mode == AsyncTp::kOn;
  auto costs = costs_of(mesh, choice);
  if (forced) {
    costs.overlap = 1;
  }
  // With one chunk, a reduce_scatter starts after the whole matmul. An
  // all_gather in one message overlaps with the matmul of this rank's own rows.
  const int64_t least = product.kind == StepKind::kAllGather ? 1 : 2;
  int64_t best = 0;
  double best_us = kWorthwhile * comm_matmul_us(product, 0, costs);
  for (int64_t parts = least; parts <= std::min(most, kMaxParts); parts *= 2) {
    const double us = comm_matmul_us(product, parts, costs);
    if ((forced && best == 0) || us < kWorthwhile * best_us) {
      best = parts;
      best_us = us;
    }
  }
  return best;
}

bool may_chunk_matmuls(const mesh::DeviceMesh& mesh) {
  const auto choice = mesh.root().extension<AsyncTpState>().get();
  return choice.mode == AsyncTp::kOn ||
         (choice.mode == AsyncTp::kAuto && costs_of(mesh, choice).overlap > 0);
}

} // namespace weft::dtensor
