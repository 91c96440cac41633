#include "dtensor/redistribute/redistribute_run.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "dtensor/redistribute/redistribute.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

// Throws if a step of the plan is not defined for values of `dtype`.
void check_values(const RedistributePlan& plan, at::ScalarType dtype) {
  for (const auto& step : plan.steps) {
    for (const int64_t i : step.mesh_dims) {
      const auto& from = step.from[i];
      const auto& to = step.to[i];
      if (to.is_partial() && !from.is_shard()) {
        check_partial_form(to.reduce_op(), dtype);
      }
      TORCH_CHECK_VALUE(
          !from.is_partial(ReduceOp::kAvg) || at::isFloatingType(dtype) ||
              at::isComplexType(dtype),
          "[redistribute] P(avg) to ",
          to.to_string(),
          ": the average of ",
          dtype,
          " is not defined. Use P(sum).");
    }
  }
}

std::shared_ptr<const RedistributePlan> checked_plan(
    const at::Tensor& local,
    c10::IntArrayRef sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name) {
  auto plan =
      find_plan(from, to, sizes, static_cast<int64_t>(local.element_size()));
  try {
    check_values(*plan, local.scalar_type());
  } catch (const c10::ValueError& error) {
    mesh::throw_error<c10::ValueError>(c10::str(
        error.what_without_backtrace(),
        " (tensor \"",
        name,
        "\" ",
        sizes,
        " from ",
        to_string(from.placements()),
        " to ",
        to_string(to.placements()),
        ", ",
        from.mesh().describe_rank(),
        ")"));
  }
  return plan;
}

} // namespace

RedistributeRun::RedistributeRun(
    at::Tensor local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name)
    : local_(std::move(local)),
      sizes_(global_sizes.vec()),
      mesh_(from.mesh()),
      plan_(checked_plan(local_, global_sizes, from, to, name)),
      messages_left_(std::ranges::count_if(plan_->steps, [](const auto& step) {
        return step.kind != StepKind::kLocal;
      })) {
  run_up_to_message();
}

void RedistributeRun::advance() {
  local_ = message_->finish();
  is_owned_ = true;
  message_.reset();
  --messages_left_;
  run_up_to_message();
}

void RedistributeRun::run_up_to_message() {
  for (; next_ < plan_->steps.size(); ++next_) {
    const LocalStep local_step{
        plan_->steps[next_], mesh_, sizes_, local_, is_owned_};
    if (local_step.step.kind != StepKind::kLocal) {
      message_ = make_message(local_step);
      ++next_;
      return;
    }
    local_ = run_local_step(local_step);
  }
}

void finish_coalesced(
    std::vector<RedistributeRun>& runs,
    std::string_view name) {
  for (;;) {
    std::vector<StepMessage> messages;
    std::vector<RedistributeRun*> waiting;
    for (auto& run : runs) {
      if (run.message()) {
        messages.push_back(*run.message());
        waiting.push_back(&run);
      }
    }
    if (messages.empty()) {
      return;
    }
    send_coalesced(messages, name).wait();
    for (auto* run : waiting) {
      run->advance();
    }
  }
}

} // namespace weft::dtensor
