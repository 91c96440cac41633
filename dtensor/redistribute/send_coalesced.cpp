#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "dtensor/redistribute/step_message.h"

namespace weft::dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.reshape({-1});
}

// Returns one tensor per rank for the parts of all messages: with copies of
// them if `copies`, and otherwise uninitialized.
Tensors packed(
    const std::vector<const StepMessage*>& messages,
    Tensors StepMessage::*parts,
    bool copies) {
  Tensors lists;
  for (size_t r = 0; r < (messages[0]->*parts).size(); ++r) {
    Tensors pieces;
    int64_t count = 0;
    for (const auto* message : messages) {
      const auto& part = (message->*parts)[r];
      count += part.numel();
      if (copies) {
        pieces.push_back(flat(part));
      }
    }
    const auto options = (messages[0]->*parts)[r].options();
    lists.push_back(copies ? at::cat(pieces) : at::empty({count}, options));
  }
  return lists;
}

void unpack(
    const Tensors& received,
    const std::vector<Tensors>& outputs_of_messages) {
  for (size_t r = 0; r < received.size(); ++r) {
    int64_t offset = 0;
    for (const auto& outputs : outputs_of_messages) {
      const auto& output = outputs[r];
      output.copy_(
          received[r].narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  }
}

void send_as_one(
    const std::vector<const StepMessage*>& messages,
    std::string_view name,
    CoalescedSend& sent) {
  if (messages.size() == 1) {
    sent.works.push_back(send(*messages[0], name));
    return;
  }
  auto group = messages[0]->group;
  if (messages[0]->kind == StepKind::kAllReduce) {
    Tensors buffers;
    for (const auto* message : messages) {
      buffers.push_back(message->buffer);
    }
    sent.works.push_back(
        group.all_reduce_coalesced(buffers, messages[0]->op, name));
    return;
  }
  StepMessage one{
      .kind = messages[0]->kind,
      .group = group,
      .op = messages[0]->op,
      .buffer = {},
      .inputs = packed(messages, &StepMessage::inputs, true),
      .outputs = packed(messages, &StepMessage::outputs, false),
      .finish = {}};
  std::vector<Tensors> outputs;
  for (const auto* message : messages) {
    outputs.push_back(message->outputs);
  }
  sent.works.push_back(send(one, name));
  sent.unpack.emplace_back(
      [received = one.outputs, outputs = std::move(outputs)] {
        unpack(received, outputs);
      });
}

const at::Tensor& any_part(const StepMessage& message) {
  return message.buffer.defined() ? message.buffer : message.inputs[0];
}

} // namespace

void CoalescedSend::wait() {
  for (auto& work : works) {
    work.wait();
  }
  for (const auto& one : unpack) {
    one();
  }
}

CoalescedSend send_coalesced(
    const std::vector<StepMessage>& messages,
    std::string_view name) {
  using Key = std::tuple<
      std::string,
      std::vector<int64_t>,
      StepKind,
      mesh::ReduceOp,
      at::ScalarType>;
  // In the order in which the keys first appear, which is identical on all
  // ranks.
  std::vector<std::pair<Key, std::vector<const StepMessage*>>> lists;
  for (const auto& message : messages) {
    const Key key{
        message.group.name(),
        message.group.ranks(),
        message.kind,
        message.kind == StepKind::kAllReduce ||
                message.kind == StepKind::kReduceScatter
            ? message.op
            : mesh::ReduceOp::kSum,
        any_part(message).scalar_type()};
    auto found = std::ranges::find_if(
        lists, [&](const auto& list) { return list.first == key; });
    if (found == lists.end()) {
      lists.push_back({key, {}});
      found = lists.end() - 1;
    }
    found->second.push_back(&message);
  }
  CoalescedSend sent;
  for (const auto& [key, list] : lists) {
    send_as_one(list, name, sent);
  }
  return sent;
}

} // namespace weft::dtensor
