#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/spec/region.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// What one step sends and receives on this rank.
struct StepMessage {
  StepKind kind = StepKind::kLocal;
  mesh::Communicator group;
  mesh::ReduceOp op = mesh::ReduceOp::kSum;
  /// All that is reduced in place; all of an even gather's outputs or an even
  /// reduce_scatter's inputs, one rank's after the other. Else undefined.
  at::Tensor buffer;
  /// A part a rank; one of a gather.
  std::vector<at::Tensor> inputs;
  /// A part a rank; one of a reduce_scatter.
  std::vector<at::Tensor> outputs;
  /// What this rank holds after the step; to be called once the collective is
  /// complete.
  std::function<at::Tensor()> finish;
};

/// A step of a plan for a tensor of `sizes`, on this rank. `local`: this rank's
/// part before the step. `is_owned`: nobody else needs its memory.
struct LocalStep {
  const PlanStep& step;
  const mesh::DeviceMesh& mesh;
  c10::IntArrayRef sizes;
  const at::Tensor& local;
  bool is_owned = false;
};

/// The result of a step that is local. May alias what came in.
at::Tensor run_local_step(const LocalStep& local_step);

/// Everything but the sending.
/// Collective: nothing but group_of().
StepMessage make_message(const LocalStep& local_step);

/// What brings each rank of `group` what it lacks: see Note [Exchanges].
/// `local`: what `map` says this rank holds before.
StepMessage make_exchange(
    const mesh::Communicator& group,
    const ExchangeMap& map,
    const at::Tensor& local);

/// Starts a message.
/// Collective: the message's group.
mesh::Work send(const StepMessage& message, std::string_view name);

/// Starts several: those of one kind, group, reduction and dtype as one.
/// What `works` lists are complete after all of them have been waited for and
/// `unpack` has been called.
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
