#include "fsdp/fsdp_join.h"

#include <utility>

#include <torch/torch.h>

#include "mesh/error/error.h"

namespace weft::fsdp {
namespace {

constexpr const char* kJoin = "join";

// An event is one of these plus kKinds times the position of the unit. 0 means
// that no rank has announced anything.
constexpr int64_t kGather = 1;
constexpr int64_t kReduce = 2;
constexpr int64_t kReduceOverShards = 3;
constexpr int64_t kEndOfBackward = 4;
constexpr int64_t kEndOfInference = 5;
constexpr int64_t kEndOfStep = 6;
constexpr int64_t kKinds = 8;

} // namespace

FsdpJoin::FsdpJoin(
    data_parallel::Joinable& model,
    data_parallel::Join& join,
    Schedule& schedule,
    mesh::Communicator ranks,
    const data_parallel::JoinKwargs& kwargs)
    : model_(model),
      join_(join),
      schedule_(schedule),
      ranks_(std::move(ranks)),
      divides_by_initial_(data_parallel::read_bool(
          kwargs,
          "divide_by_initial_world_size",
          true)) {
  WEFT_CHECK(
      !data_parallel::read_bool(kwargs, "weight_by_samples", false),
      kJoin,
      mesh::ErrorContext{ranks_.name()},
      "weight_by_samples is not supported by FullyShardedDataParallel. Leave "
      "it out, and weight the losses.");
  schedule_.set_observer(this);
}

FsdpJoin::~FsdpJoin() {
  schedule_.set_observer(nullptr);
  schedule_.set_contributors(0);
}

void FsdpJoin::check_optimizer() const {
  WEFT_CHECK(
      has_optimizer_,
      kJoin,
      mesh::ErrorContext{ranks_.name()},
      "the Join has no optimizer, but a rank without inputs must update its "
      "shard. Pass a weft::fsdp::JoinableOptimizer after the model.");
}

void FsdpJoin::set_divisor() {
  if (!divides_by_initial_) {
    schedule_.set_contributors(join_.active_ranks());
  }
}

void FsdpJoin::begin_forward() {
  const bool is_trained = at::GradMode::is_enabled();
  if (is_trained) {
    check_optimizer();
  }
  join_.check_model_parallel_mesh();
  if (!is_open_) {
    data_parallel::Join::notify_join_context_async(model_);
    is_open_ = true;
    is_inference_ = !is_trained;
    set_divisor();
  }
}

void FsdpJoin::end_forward() {
  if (is_open_ && is_inference_) {
    send(kEndOfInference);
    is_open_ = false;
  }
}

void FsdpJoin::send(int64_t event) {
  join_.active_ranks();
  ranks_
      .all_reduce(
          at::full({1}, event, at::kLong).to(model_.join_device()),
          mesh::ReduceOp::kMax,
          "join event")
      .wait();
}

int64_t FsdpJoin::receive() {
  const auto event = at::zeros({1}, at::kLong).to(model_.join_device());
  ranks_.all_reduce(event, mesh::ReduceOp::kMax, "join event").wait();
  return event.is_meta() ? 0 : event.item<int64_t>();
}

void FsdpJoin::before_gather(size_t unit) {
  WEFT_CHECK(
      is_open_,
      kJoin,
      mesh::ErrorContext{ranks_.name()},
      "parameters of unit ",
      schedule_.units()[unit]->name(),
      " were gathered outside the model's forward and backward. Ranks without "
      "inputs cannot take part in that inside a Join. Do it before or after "
      "the Join.");
  send(kGather + kKinds * static_cast<int64_t>(unit));
}

void FsdpJoin::before_reduce(size_t unit, bool over_replicas) {
  send(
      (over_replicas ? kReduce : kReduceOverShards) +
      kKinds * static_cast<int64_t>(unit));
}

void FsdpJoin::end_backward(bool is_complete) {
  if (is_open_) {
    send(is_complete ? kEndOfStep : kEndOfBackward);
    is_open_ = !is_complete;
  }
}

void FsdpJoin::main_hook() {
  // This rank follows the rest of an iteration that it may have begun.
  is_open_ = false;
  has_reduced_ = false;
  set_divisor();
  for (;;) {
    const int64_t event = receive();
    const auto unit = static_cast<size_t>(event / kKinds);
    switch (event % kKinds) {
      case kGather:
        schedule_.follow_gather(unit);
        break;
      case kReduce:
        check_optimizer();
        schedule_.follow_reduce(unit, /*over_replicas=*/true);
        break;
      case kReduceOverShards:
        check_optimizer();
        schedule_.follow_reduce(unit, /*over_replicas=*/false);
        break;
      case kEndOfBackward:
        schedule_.follow_end_of_backward();
        break;
      case kEndOfStep:
        schedule_.follow_end_of_backward();
        has_reduced_ = true;
        return;
      default: // kEndOfInference, or no rank has inputs.
        return;
    }
  }
}

} // namespace weft::fsdp
