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

/// A redistribution on its way: its local steps run at once, those that
/// communicate one message at a time. Below autograd.
class RedistributeRun {
 public:
  /// Runs up to the first message.
  /// Collective: nothing but group_of().
  /// Throws: as redistribute_local().
  RedistributeRun(
      at::Tensor local,
      c10::IntArrayRef global_sizes,
      const DTensorSpec& from,
      const DTensorSpec& to,
      std::string_view name);

  /// What is to be sent next; none when the result is there.
  const std::optional<StepMessage>& message() const { return message_; }
  /// No other message comes after this one.
  bool is_last_message() const { return messages_left_ <= 1; }
  /// To be called when the message has been sent and waited for: goes on to the
  /// next one.
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
  /// Nobody else has the memory of `local_`.
  bool is_owned_ = false;
  std::optional<StepMessage> message_;
};

/// Goes on with all of them to their results: messages that are due at the same
/// time go out together, those of one kind, group and dtype as one.
/// Collective: the groups of their messages, with lists that are alike; blocks.
void finish_coalesced(
    std::vector<RedistributeRun>& runs,
    std::string_view name);

} // namespace weft::dtensor
