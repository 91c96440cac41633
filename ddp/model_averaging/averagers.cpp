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
  WEFT_CHECK_LE(
      op,
      0,
      warmup_steps,
      mesh::ErrorContext{"model averaging"},
      "warmup_steps is the number of steps before the first average. Set it to "
      "0 or more.");
}

void warn_of_period_one(const char* op) {
  TORCH_WARN(
      op,
      ": averaging the parameters at every step communicates as much as "
      "averaging the gradients. Use only DistributedDataParallel, or a longer "
      "period.");
}

mesh::Communicator group_of(const char* op, const mesh::DeviceMesh& dp_mesh) {
  WEFT_CHECK_EQ(
      op,
      dp_mesh.ndim(),
      1,
      mesh::ErrorContext{dp_mesh.describe_rank()},
      "Replicas must be along one mesh dim: take a slice, e.g. mesh[\"dp\"].");
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
    WEFT_CHECK_LT(
        kHierarchical,
        last_period,
        period,
        where(),
        "Periods in period_group_size must be positive and ascending.");
    WEFT_CHECK_LT(
        kHierarchical,
        last_group_size,
        group_size,
        where(),
        "Group sizes in period_group_size must be positive and ascending, "
        "because averages over more replicas are less frequent.");
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
  WEFT_CHECK_EQ(
      kHierarchical,
      last_group_size,
      dp_mesh.size(),
      where(),
      "The last group in period_group_size must contain all replicas.");
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
  WEFT_CHECK_LE(
      "ModelAverager",
      0,
      step,
      mesh::ErrorContext{"model averaging"},
      "It is a number of steps.");
  step_ = step;
}

PeriodicModelAverager::PeriodicModelAverager(
    int64_t period,
    int64_t warmup_steps,
    mesh::Communicator group)
    : period_(period), warmup_steps_(warmup_steps), group_(std::move(group)) {
  check_warmup_steps(kPeriodic, warmup_steps);
  WEFT_CHECK_LE(
      kPeriodic,
      1,
      period,
      mesh::ErrorContext{"model averaging"},
      "period is the number of steps from one average to the next. Set it to "
      "at least 1.");
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
  WEFT_CHECK_EQ(
      kOp,
      mesh.ndim(),
      1,
      where(),
      "Pass a slice with one mesh dim, e.g. mesh[\"dp\"].");
  WEFT_CHECK_LE(
      kOp, 1, group_size, where(), "A group must have at least one rank.");
  WEFT_CHECK_EQ(
      kOp,
      mesh.size() % group_size,
      0,
      where(),
      "The ",
      mesh.size(),
      " ranks cannot be divided into groups of ",
      group_size,
      ". Choose a size that divides.");
  const auto begin =
      mesh.ranks().begin() + mesh.coordinate(0) / group_size * group_size;
  const std::vector<int64_t> ranks(begin, begin + group_size);
  const auto name = mesh::detail::concat(
      mesh.mesh_dim_names().front(),
      " by ",
      group_size,
      "/",
      mesh.coordinate(0) / group_size);
  // Meshes beside this one are cut at the same time, into other ranks.
  const auto scope = mesh::detail::concat(
      "subgroups ", mesh.world().next_id(), " at ", ranks.front());
  return mesh.world().make_group(name, ranks, scope);
}

} // namespace weft::ddp
