#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/redistribute/step_message.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// A running redistribution. Local steps run immediately, communicating steps
/// one message at a time. Below autograd.
class RedistributeRun {
 public:
  /// Runs until the first message.
  /// Collective: only for group_of().
  /// Throws: like redistribute_local().
  RedistributeRun(
      at::Tensor local,
      c10::IntArrayRef global_sizes,
      const DTensorSpec& from,
      const DTensorSpec& to,
      std::string_view name);

  /// The next message to send. Empty if the result is complete.
  const std::optional<StepMessage>& message() const { return message_; }
  /// Returns true if this is the last message.
  bool is_last_message() const { return messages_left_ <= 1; }
  /// Continues to the next message. Must be called after the current one was
  /// sent and waited for.
  void advance();

  const at::Tensor& result() const { return local_; }

 private:
  void run_up_to_message();

  at::Tensor local_;
  std::vector<int64_t> sizes_;
  mesh::DeviceMesh mesh_;
  std::shared_ptr<const RedistributePlan> plan_;
  size_t next_ = 0;
  int64_t messages_left_ = 0;
  /// True if nothing else refers to the memory of `local_`.
  bool is_owned_ = false;
  std::optional<StepMessage> message_;
};

/// Runs all redistributions to their results. Messages that are due at the same
/// time are sent together, and those of one kind, group and dtype as one.
/// Collective: the groups of their messages, with identical lists; blocks.
void finish_coalesced(
    std::vector<RedistributeRun>& runs,
    std::string_view name);

} // namespace weft::dtensor
