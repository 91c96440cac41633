// Redistributions in the autograd graph, and those of their gradients.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_run.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/started_redistribution.h"

namespace weft::dtensor {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Note [Deferred weight gradients]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Autograd runs the node that was created last among those that are ready. A
// redistribution in two steps has two nodes, with an unused sequence number
// between theirs. The later node sends the gradient, and the earlier one waits
// for it. Nodes that take the unused number run in between, on every rank
// alike.

// Gradients that were sent and not yet waited for, by the graph task id of the
// backward pass.
class SentGradients {
 public:
  void put(std::unique_ptr<StartedRedistribution> sent) {
    const std::lock_guard lock(mutex_);
    sent_[torch::autograd::get_current_graph_task_id()] = std::move(sent);
  }
  std::unique_ptr<StartedRedistribution> take() {
    const std::lock_guard lock(mutex_);
    const auto entry =
        sent_.extract(torch::autograd::get_current_graph_task_id());
    return entry ? std::move(entry.mapped()) : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<StartedRedistribution>> sent_;
};

struct RedistributeBackward final : Node {
  std::optional<DTensorSpec> target;
  std::string label;
  std::string module;
  bool is_implicit = false;
  at::ScalarType dtype = at::kFloat;
  CommDtypes comm_dtypes;
  /// The gradients that a SendGradient has sent. Null if there is no
  /// SendGradient.
  std::shared_ptr<SentGradients> sent;

  std::string name() const override { return "RedistributeBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    auto& impl = require_dtensor_gradient(grads[0], "redistribute backward");
    const detail::ModuleScope in_module(module);
    if (const auto run = sent ? sent->take() : nullptr) {
      const at::AutoDispatchBelowADInplaceOrView below;
      return {run->finish()};
    }
    const bool shared = is_shared_gradient(grads[0]);
    auto result = redistribute_as(
        grads[0],
        *target,
        label,
        dtype,
        {comm_dtypes.backward, comm_dtypes.forward},
        is_implicit);
    const bool aliases =
        !result.is_same(grads[0]) &&
        dtensor_impl(result)->local().is_alias_of(impl.local());
    return {
        shared && aliases ? share_gradient(*this, grads[0], std::move(result))
                          : result};
  }
};

struct SendGradient final : Node {
  explicit SendGradient(uint64_t turn) : late_turn(turn) {}

  std::string name() const override { return "SendGradient"; }
  variable_list apply(variable_list&& grads) override {
    // If backward records a graph, RedistributeBackward redistributes the
    // gradient in one differentiable step instead.
    if (grads[0].defined() && !at::GradMode::is_enabled()) {
      auto& impl = require_dtensor_gradient(grads[0], "redistribute backward");
      if (!(impl.spec() == *target)) {
        const detail::ModuleScope in_module(module);
        const detail::RedistributeScope move(
            grads[0], impl.spec(), *target, is_implicit);
        const at::AutoDispatchBelowADInplaceOrView below;
        sent->put(std::make_unique<StartedRedistribution>(
            grads[0], *target, grads[0].scalar_type(), label));
      }
    }
    return {grads[0]};
  }

  uint64_t late_turn;
  std::optional<DTensorSpec> target;
  std::string label;
  std::string module;
  bool is_implicit = false;
  std::shared_ptr<SentGradients> sent;
};

} // namespace

at::Tensor redistribute_as(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    at::ScalarType result,
    const CommDtypes& comm_dtypes,
    bool is_implicit) {
  auto* impl = dtensor_impl(dtensor);
  if (impl->spec() == to && dtensor.scalar_type() == result) {
    return dtensor;
  }
  check_materialized(dtensor, name);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const detail::RedistributeScope move(
        dtensor, impl->spec(), to, is_implicit);
    const auto& local = impl->local();
    output = make_dtensor(
        redistribute_across(
            comm_dtypes.forward ? local.to(*comm_dtypes.forward) : local,
            impl->sizes(),
            impl->spec(),
            to,
            name)
            .to(result),
        to,
        impl->sizes(),
        impl->strides());
  }
  if (records_graph(dtensor)) {
    record_redistribution(dtensor, output, name, comm_dtypes, is_implicit);
  }
  return output;
}

at::Tensor redistribute_by(
    const std::function<at::Tensor()>& move,
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name,
    bool is_implicit) {
  const auto* impl = dtensor_impl(dtensor);
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const detail::RedistributeScope scope(
        dtensor, impl->spec(), to, is_implicit);
    output = make_dtensor(move(), to, impl->sizes(), impl->strides());
  }
  if (records_graph(dtensor)) {
    record_redistribution(dtensor, output, name, {}, is_implicit);
  }
  return output;
}

void record_redistribution(
    const at::Tensor& input,
    at::Tensor& output,
    std::string_view name,
    const CommDtypes& comm_dtypes,
    bool is_implicit) {
  auto* node = record<RedistributeBackward>(input, output);
  node->target = dtensor_impl(input)->spec().without_partial();
  node->label = name;
  node->module = detail::current_module();
  node->is_implicit = is_implicit;
  node->dtype = input.scalar_type();
  node->comm_dtypes = comm_dtypes;
}

at::Tensor redistribute_to(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name) {
  return redistribute_as(dtensor, to, name, dtensor.scalar_type());
}

void send_gradient_early(at::Tensor& output) {
  auto* wait = dynamic_cast<RedistributeBackward*>(output.grad_fn().get());
  if (!wait) {
    return;
  }
  const uint64_t turn = at::sequence_number::get_and_increment();
  auto [pointer, node] = make_node<SendGradient>(turn);
  wait->sent = std::make_shared<SentGradients>();
  node->target = wait->target;
  node->label = wait->label;
  node->module = wait->module;
  node->is_implicit = wait->is_implicit;
  node->sent = wait->sent;
  node->set_next_edges(torch::autograd::collect_next_edges(output));
  auto sent = output.detach();
  torch::autograd::create_gradient_edge(sent, std::move(pointer));
  output = sent;
}

std::optional<uint64_t> sequence_nr_of(const Node* node) {
  const auto* send = dynamic_cast<const SendGradient*>(node);
  return send ? std::optional(send->late_turn) : std::nullopt;
}

} // namespace weft::dtensor
