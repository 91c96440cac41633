#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/spec/region.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// The data that one step sends and receives on this rank.
struct StepMessage {
  StepKind kind = StepKind::kLocal;
  mesh::Communicator group;
  mesh::ReduceOp op = mesh::ReduceOp::kSum;
  /// The data that is reduced in place, or the outputs of an even all_gather,
  /// or the inputs of an even reduce_scatter, in rank order. Otherwise
  /// undefined.
  at::Tensor buffer;
  /// One part per rank. One part for a gather.
  std::vector<at::Tensor> inputs;
  /// One part per rank. One part for a reduce_scatter.
  std::vector<at::Tensor> outputs;
  /// Returns this rank's tensor after the step. Must be called after the
  /// collective is complete.
  std::function<at::Tensor()> finish;
};

/// A step of a plan for a tensor of `sizes` on this rank. `local` is this
/// rank's part before the step. `is_owned` means that its memory can be reused.
struct LocalStep {
  const PlanStep& step;
  const mesh::DeviceMesh& mesh;
  c10::IntArrayRef sizes;
  const at::Tensor& local;
  bool is_owned = false;
};

/// Returns the result of a step without communication. It may alias the input.
at::Tensor run_local_step(const LocalStep& local_step);

/// Prepares a message without sending it.
/// Collective: only for group_of().
StepMessage make_message(const LocalStep& local_step);

/// Prepares a message that brings each rank of `group` the data it lacks. See
/// Note [Exchanges]. `local` is what `map` says this rank holds before.
StepMessage make_exchange(
    const mesh::Communicator& group,
    const ExchangeMap& map,
    const at::Tensor& local);

/// Starts a message.
/// Collective: the message's group.
mesh::Work send(const StepMessage& message, std::string_view name);

/// Starts several messages; those of one kind, group, reduction and dtype as
/// one. They are complete after all `works` were waited for and every function
/// in `unpack` was called.
/// Collective: the messages' groups, with the same list on all ranks.
struct CoalescedSend {
  std::vector<mesh::Work> works;
  std::vector<std::function<void()>> unpack;

  void wait();
};
CoalescedSend send_coalesced(
    const std::vector<StepMessage>& messages,
    std::string_view name);

} // namespace weft::dtensor
