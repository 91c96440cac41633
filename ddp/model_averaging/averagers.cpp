#include "ddp/model_averaging/averagers.h"

#include <ranges>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "ddp/model_averaging/average_parameters.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr const char* kPeriodic = "PeriodicModelAverager";
constexpr const char* kHierarchical = "HierarchicalModelAverager";

void check_warmup_steps(const char* op, int64_t warmup_steps) {
  WEFT_CHECK(
      warmup_steps >= 0,
      op,
      mesh::ErrorContext{"model averaging"},
      "warmup_steps: got ",
      warmup_steps,
      ", expected at least 0. It is the number of steps before the first "
      "average.");
}

void warn_of_period_one(const char* op) {
  TORCH_WARN(
      op,
      ": averaging the parameters at every step communicates as much as "
      "averaging the gradients. Use only DistributedDataParallel, or a longer "
      "period.");
}

mesh::Communicator group_of(const char* op, const mesh::DeviceMesh& dp_mesh) {
  WEFT_CHECK(
      dp_mesh.ndim() == 1,
      op,
      mesh::ErrorContext{dp_mesh.describe_rank()},
      "mesh: got ",
      dp_mesh.ndim(),
      " mesh dims, expected 1, that of the replicas. Pass a slice, e.g. "
      "mesh[\"dp\"].");
  return dp_mesh.group(int64_t{0});
}

using PeriodGroupSize = std::vector<std::pair<int64_t, int64_t>>;

void check_hierarchy(
    const PeriodGroupSize& period_group_size,
    const mesh::DeviceMesh& dp_mesh) {
  const auto where = [&] {
    return mesh::ErrorContext{dp_mesh.describe_rank()};
  };
  WEFT_CHECK(
      !period_group_size.empty(),
      kHierarchical,
      where(),
      "period_group_size is empty. Give at least one period with the number "
      "of replicas, e.g. {{16, ",
      dp_mesh.size(),
      "}}.");
  int64_t last_period = 0;
  int64_t last_group_size = 0;
  for (const auto& [period, group_size] : period_group_size) {
    WEFT_CHECK(
        last_period < period,
        kHierarchical,
        where(),
        "period_group_size: got period ",
        period,
        " after ",
        last_period,
        ", expected positive and ascending periods.");
    WEFT_CHECK(
        last_group_size < group_size,
        kHierarchical,
        where(),
        "period_group_size: got a group of ",
        group_size,
        " after one of ",
        last_group_size,
        ", expected positive and ascending sizes, because averages over more "
        "replicas are less frequent.");
    WEFT_CHECK(
        dp_mesh.size() % group_size == 0,
        kHierarchical,
        where(),
        "period_group_size has groups of ",
        group_size,
        ", into which ",
        dp_mesh.size(),
        " replicas cannot be divided. Choose a size that divides their "
        "number.");
    last_period = period;
    last_group_size = group_size;
  }
  WEFT_CHECK(
      last_group_size == dp_mesh.size(),
      kHierarchical,
      where(),
      "period_group_size: got a last group of ",
      last_group_size,
      ", expected all ",
      dp_mesh.size(),
      " replicas.");
}

} // namespace

void ModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  if (auto* group = group_at(step_)) {
    ddp::average_parameters(parameters, *group);
  }
  ++step_;
}

void ModelAverager::set_step(int64_t step) {
  WEFT_CHECK(
      step >= 0,
      "ModelAverager",
      mesh::ErrorContext{"model averaging"},
      "step: got ",
      step,
      ", expected at least 0. It is a number of steps.");
  step_ = step;
}

PeriodicModelAverager::PeriodicModelAverager(
    int64_t period,
    int64_t warmup_steps,
    mesh::Communicator group)
    : period_(period), warmup_steps_(warmup_steps), group_(std::move(group)) {
  check_warmup_steps(kPeriodic, warmup_steps);
  WEFT_CHECK(
      period >= 1,
      kPeriodic,
      mesh::ErrorContext{"model averaging"},
      "period: got ",
      period,
      ", expected at least 1. It is the number of steps from one average to "
      "the next.");
  if (period == 1) {
    warn_of_period_one(kPeriodic);
  }
}

PeriodicModelAverager::PeriodicModelAverager(
    int64_t period,
    int64_t warmup_steps,
    const mesh::DeviceMesh& dp_mesh)
    : PeriodicModelAverager(
          period,
          warmup_steps,
          group_of(kPeriodic, dp_mesh)) {}

mesh::Communicator* PeriodicModelAverager::group_at(int64_t step) {
  return step >= warmup_steps_ && (step - warmup_steps_) % period_ == 0
             ? &group_
             : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(
    const PeriodGroupSize& period_group_size,
    int64_t warmup_steps,
    const mesh::DeviceMesh& dp_mesh)
    : warmup_steps_(warmup_steps) {
  const auto all = group_of(kHierarchical, dp_mesh);
  check_warmup_steps(kHierarchical, warmup_steps);
  check_hierarchy(period_group_size, dp_mesh);
  for (const auto& [period, group_size] : period_group_size) {
    period_group_.emplace_back(
        period,
        group_size == dp_mesh.size() ? all
                                     : new_subgroups(dp_mesh, group_size));
  }
  if (period_group_.back().first == 1) {
    warn_of_period_one(kHierarchical);
  }
}

mesh::Communicator* HierarchicalModelAverager::group_at(int64_t step) {
  if (step < warmup_steps_) {
    return nullptr;
  }
  for (auto& [period, group] : period_group_ | std::views::reverse) {
    if (step % period == 0) {
      return &group;
    }
  }
  return nullptr;
}

mesh::Communicator new_subgroups(
    const mesh::DeviceMesh& mesh,
    int64_t group_size) {
  constexpr const char* kOp = "new_subgroups";
  const auto where = [&] { return mesh::ErrorContext{mesh.describe_rank()}; };
  WEFT_CHECK(
      mesh.ndim() == 1,
      kOp,
      where(),
      "mesh: got ",
      mesh.ndim(),
      " mesh dims, expected 1. Pass a slice, e.g. mesh[\"dp\"].");
  WEFT_CHECK(
      group_size >= 1 && mesh.size() % group_size == 0,
      kOp,
      where(),
      "group_size: got ",
      group_size,
      ", expected a divisor of the ",
      mesh.size(),
      " ranks.");
  const auto begin =
      mesh.ranks().begin() + mesh.coordinate(0) / group_size * group_size;
  const std::vector<int64_t> ranks(begin, begin + group_size);
  const auto name = mesh::detail::concat(
      mesh.mesh_dim_names().front(),
      " by ",
      group_size,
      "/",
      mesh.coordinate(0) / group_size);
  // Slices of other ranks make groups of the same name at the same time. The
  // scope distinguishes them by their first rank.
  const auto scope = mesh::detail::concat(
      "subgroups ", mesh.world().next_id(), " at ", ranks.front());
  return mesh.world().make_group(name, ranks, scope);
}

} // namespace weft::ddp
