#include "dtensor/dispatch/plan_run.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include <ATen/TensorUtils.h>
#include <torch/torch.h>

#include "dtensor/dispatch/cheaper_placements.h"
#include "dtensor/dispatch/op_arguments.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_run.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/implicit_redistribution.h"

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;

at::Tensor wrap_unplaced(const at::Tensor& local) {
  return make_dtensor(local, DTensorSpec(), local.sizes(), local.strides());
}

template <class Wrap>
void wrap_results(Stack& stack, size_t returns, const Wrap& wrap) {
  for (auto it = stack.end() - static_cast<int64_t>(returns); it != stack.end();
       ++it) {
    if (it->isTensor()) {
      *it = wrap(std::move(*it).toTensor());
    } else if (it->isTensorList()) {
      auto list = it->toTensorVector();
      for (auto& tensor : list) {
        tensor = wrap(std::move(tensor));
      }
      *it = std::move(list);
    }
  }
}

void return_written(
    Stack& stack,
    size_t returns,
    c10::ArrayRef<at::Tensor> written) {
  for (size_t i = 0; i < std::min(returns, written.size()); ++i) {
    stack[stack.size() - returns + i] = written[i];
  }
}

// Makes a local tensor contiguous if it cannot be viewed with `sizes`. The full
// tensor can have a view that this rank's part has not, e.g. if a user passed a
// slice to from_local().
void make_viewable(c10::IValue& value, c10::IntArrayRef sizes) {
  const auto& local = value.toTensor();
  if (!local.is_contiguous() &&
      !at::detail::computeStride(local.sizes(), local.strides(), sizes)) {
    value = local.contiguous();
  }
}

class PlanRun {
 public:
  PlanRun(
      const c10::OperatorHandle& op,
      const OpPlan& plan,
      const mesh::DeviceMesh& mesh,
      Stack& stack)
      : op_(op),
        plan_(plan),
        mesh_(mesh),
        stack_(stack),
        first_(stack.size() - op.schema().arguments().size()),
        returns_(op.schema().returns().size()) {}

  void run() {
    const bool normal_view = makes_normal_view();
    check_moves();
    check_writes();
    if (plan_.is_view) {
      base_ = stack_[first_].toTensor();
    }
    enter_inputs();
    enter_outs();
    for (const auto& [argument, value] : plan_.local_arguments) {
      stack_[first_ + argument] = value;
    }
    if (plan_.reshapes) {
      make_viewable(stack_[first_], stack_[first_ + 1].toIntVector());
    }
    if (plan_.is_view) {
      shown_ = stack_[first_].toTensor();
    }
    op_.callBoxed(&stack_);
    if (plan_.writes || !plan_.outs.empty()) {
      leave_outs();
      for (const auto& tensor : written_) {
        note_write(tensor, op_.schema().name());
      }
      return_written(stack_, returns_, written_);
      return;
    }
    std::optional<c10::InferenceMode> normal;
    if (normal_view) {
      normal.emplace(false);
    }
    if (plan_.replicated_results) {
      wrap_replicated();
    } else {
      wrap_planned();
    }
  }

 private:
  // Returns true if the results must be normal tensors: in InferenceMode a view
  // of a normal tensor is a normal tensor, although new tensors are not.
  bool makes_normal_view() const {
    return plan_.is_view && c10::InferenceMode::is_enabled() &&
           stack_[first_].isTensor() &&
           !stack_[first_].toTensor().is_inference();
  }

  // Checks the implicit redistributions of this call (see
  // ExplicitRedistribution), and finds cheaper placements for a CommDebugMode.
  void check_moves() {
    if (!detail::moves_are_watched()) {
      return;
    }
    const auto call = read_call(
        op_, Arguments(&stack_[first_], op_.schema().arguments().size()));
    if (detail::is_finding_cheaper()) {
      cheaper_ = cheaper_placements(call);
    }
    for (size_t i = 0, next = 0; i < call.tensors.size(); ++i) {
      if (!call.tensors[i].spec) {
        continue;
      }
      const auto& input = plan_.inputs.at(next++);
      if (input.to) {
        check_implicit_redistribution(
            call.name(),
            call.tensors[i].tensor,
            DTensorSpec(mesh_, input.from),
            DTensorSpec(mesh_, input.to),
            [&] { return describe_arguments(call); });
      }
    }
  }

  // Checks the tensors that the op writes to. Runs before this call sends
  // anything.
  void check_writes() {
    ArgumentReplacer arguments(&stack_[first_]);
    for (const auto& input : plan_.inputs) {
      if (input.is_written) {
        check_write(
            arguments.get(input.argument, input.list_index),
            op_.schema().name());
      }
    }
    for (const auto& out : plan_.outs) {
      check_write(
          arguments.get(out.argument, out.list_index), op_.schema().name());
    }
  }

  // Redistributes all inputs that need it together. moved() then returns the
  // results in the order of the inputs.
  void move_together() {
    ArgumentReplacer arguments(&stack_[first_]);
    std::vector<RedistributeRun> runs;
    std::optional<detail::RedistributeScope> move;
    for (const auto& input : plan_.inputs) {
      if (input.to) {
        const auto tensor = arguments.get(input.argument, input.list_index);
        const DTensorSpec from(mesh_, input.from);
        const DTensorSpec to(mesh_, input.to);
        if (!move) {
          move.emplace(tensor, from, to, /*is_implicit=*/true, cheaper_);
        }
        runs.emplace_back(
            dtensor_impl(tensor)->local(),
            tensor.sizes(),
            from,
            to,
            op_.schema().name());
      }
    }
    finish_coalesced(runs, op_.schema().name());
    for (const auto& run : std::ranges::reverse_view(runs)) {
      moved_.push_back(run.result());
    }
  }

  void enter_inputs() {
    if (plan_.is_coalesced) {
      move_together();
    }
    ArgumentReplacer arguments(&stack_[first_]);
    for (const auto& input : plan_.inputs) {
      if (input.list_index < 0 && !input.is_written) {
        auto& value = stack_[first_ + input.argument];
        const auto& tensor = value.toTensor();
        value = input.to ? moved(tensor, input) : dtensor_impl(tensor)->local();
        continue;
      }
      const auto tensor = arguments.get(input.argument, input.list_index);
      auto* impl = dtensor_impl(tensor);
      if (input.is_written) {
        written_.push_back(tensor);
      }
      arguments.set(
          input.argument,
          input.list_index,
          input.to ? moved(tensor, input) : impl->local());
    }
    arguments.close();
  }

  at::Tensor moved(const at::Tensor& tensor, const OpPlan::Input& input) {
    if (plan_.is_coalesced) {
      auto result = std::move(moved_.back());
      moved_.pop_back();
      return result;
    }
    const DTensorSpec from(mesh_, input.from);
    const DTensorSpec to(mesh_, input.to);
    const detail::RedistributeScope move(
        tensor, from, to, /*is_implicit=*/true, cheaper_);
    const auto& local = dtensor_impl(tensor)->local();
    auto result = redistribute_local(
        local, tensor.sizes(), from, to, op_.schema().name());
    // A shard of a replicated tensor is a view of its local tensor. A write to
    // such a view would reach only this rank's replica.
    return plan_.is_view && result.is_alias_of(local) ? result.clone() : result;
  }

  void enter_outs() {
    ArgumentReplacer arguments(&stack_[first_]);
    for (const auto& out : plan_.outs) {
      written_.push_back(arguments.get(out.argument, out.list_index));
      const auto& local = dtensor_impl(written_.back())->local();
      results_.push_back(
          out.result ? at::empty(out.result_sizes, local.options()) : local);
      arguments.set(out.argument, out.list_index, results_.back());
    }
    arguments.close();
  }

  // Copies results whose placements differ from those of their out= tensors.
  void leave_outs() {
    for (size_t i = 0; i < plan_.outs.size(); ++i) {
      const auto& out = plan_.outs[i];
      if (!out.result) {
        continue;
      }
      auto* impl =
          dtensor_impl(written_[written_.size() - plan_.outs.size() + i]);
      impl->local().copy_(redistribute_local(
          results_[i],
          impl->sizes(),
          DTensorSpec(mesh_, out.result),
          DTensorSpec(mesh_, out.spec),
          op_.schema().name()));
    }
  }

  // Like make_dtensor(), but moves the spec into the tensor, which saves
  // counting a reference to the mesh.
  at::Tensor wrap(
      at::Tensor local,
      const DTensorSpec::Entry* spec,
      c10::IntArrayRef sizes,
      c10::IntArrayRef strides) const {
    return at::detail::make_tensor<DTensorImpl>(
        std::move(local), DTensorSpec(mesh_, spec), sizes, strides);
  }

  void wrap_replicated() {
    wrap_results(stack_, returns_, [&](at::Tensor local) {
      return local.defined() ? wrap(
                                   local,
                                   plan_.replicated_results,
                                   local.sizes(),
                                   local.strides())
                             : local;
    });
  }

  // Returns the link of a view to its base if the view's local tensor is a
  // copy, and otherwise null. See Note [Copied views].
  std::shared_ptr<CopiedView> shown_copy(const at::Tensor& result) {
    if (!plan_.is_view || !result.has_storage()) {
      return nullptr;
    }
    const auto* base = dtensor_impl(base_);
    if (result.is_alias_of(base->local())) {
      return base->copied_view;
    }
    if (!copied_view_ && result.is_alias_of(shown_)) {
      copied_view_ = make_copied_view(*base, shown_, shown_spec());
    }
    return copied_view_;
  }

  DTensorSpec shown_spec() const {
    const auto* spec = plan_.inputs.at(0).to;
    return DTensorSpec(mesh_, spec ? spec : plan_.inputs.at(0).from);
  }

  void wrap_planned() {
    size_t next = 0;
    wrap_results(stack_, returns_, [&](at::Tensor local) {
      const auto& output = plan_.outputs.at(next++);
      if (!local.defined()) {
        return local;
      }
      auto copied_view = shown_copy(local);
      auto result =
          wrap(std::move(local), output.spec, output.sizes, output.strides);
      dtensor_impl(result)->copied_view = std::move(copied_view);
      return result;
    });
  }

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const mesh::DeviceMesh mesh_;
  Stack& stack_;
  const size_t first_;
  const size_t returns_;
  /// The result of cheaper_placements(). Empty unless a CommDebugMode computes
  /// it.
  std::string cheaper_;
  /// The results of move_together(), last input first.
  std::vector<at::Tensor> moved_;
  /// A view op's input, and the local tensor that it ran on.
  at::Tensor base_;
  at::Tensor shown_;
  std::shared_ptr<CopiedView> copied_view_;
  c10::SmallVector<at::Tensor, 2> written_;
  /// The local tensor that the op writes to, for each of the plan's outs.
  c10::SmallVector<at::Tensor, 2> results_;
};

} // namespace

void run_plan(
    const c10::OperatorHandle& op,
    const OpPlan& plan,
    const mesh::DeviceMesh& mesh,
    Stack& stack) {
  PlanRun(op, plan, mesh, stack).run();
}

// Runs the op on the local tensors, which are the full ones for DTensors on no
// mesh. The op itself determines the sizes of its results.
void run_unplaced(const c10::OperatorHandle& op, Stack& stack) {
  // In DeferredInit, tensors that the op itself creates must not be deferred.
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKey::DeferredInit);
  const auto& schema = op.schema();
  const size_t first = stack.size() - schema.arguments().size();
  const auto& returns = schema.returns();
  const bool writes = !returns.empty() && returns[0].alias_info() &&
                      returns[0].alias_info()->isWrite();
  std::vector<at::Tensor> written;
  ArgumentReplacer arguments(&stack[first]);
  const std::vector<c10::IValue> originals(
      stack.begin() + static_cast<int64_t>(first), stack.end());
  for_each_tensor(
      originals,
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        const auto* alias = schema.arguments()[argument].alias_info();
        if (writes && alias && alias->isWrite()) {
          written.push_back(tensor);
        }
        if (auto* impl = dtensor_impl(tensor)) {
          arguments.set(argument, list_index, impl->local());
        }
      });
  arguments.close();
  op.callBoxed(&stack);
  if (!writes) {
    wrap_results(stack, returns.size(), [](const at::Tensor& t) {
      return t.defined() ? wrap_unplaced(t) : t;
    });
    return;
  }
  for (const auto& tensor : written) {
    if (auto* impl = dtensor_impl(tensor)) {
      impl->set_global_geometry(impl->local().sizes(), impl->local().strides());
    }
  }
  return_written(stack, returns.size(), written);
}

} // namespace weft::dtensor
