#include "dtensor/dispatch/dispatch.h"

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/op_arguments.h"
#include "dtensor/dispatch/plan_cache.h"
#include "dtensor/dispatch/plan_run.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"

// Note [Dispatch]
// ~~~~~~~~~~~~~~~
// Every aten op that libtorch does not itself compose from others has a boxed
// kernel at PrivateUse3, below autograd: it looks the call up in the mesh's
// plan cache, asks the op's rule on a miss, redistributes, calls the op on the
// local tensors and wraps the results. A few composite ops have kernels above
// autograd instead, see kernels/.

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;

void refuse_plain(const c10::OperatorHandle& op, Arguments arguments) {
  const auto call = read_call(op, arguments);
  TORCH_CHECK_VALUE(
      false,
      "[",
      call.name(),
      "] mixes DTensors with a plain tensor; the arguments are ",
      describe_arguments(call),
      ". Make the plain tensor a DTensor with distribute_tensor() (full "
      "tensor) or from_local() (local tensor). (",
      call.mesh().describe_rank(),
      ")");
}

// Replaces the plain tensors that have dims by replicated DTensors. See
// ImplicitReplication.
void replicate_plain(
    const c10::OperatorHandle& op,
    const DTensorSpec& common,
    Stack& stack) {
  const auto whole = common.with(Placements(common.mesh_ndim(), Replicate()));
  const size_t count = op.schema().arguments().size();
  ArgumentReplacer arguments(&stack[stack.size() - count]);
  const std::vector<c10::IValue> originals(
      stack.end() - static_cast<int64_t>(count), stack.end());
  for_each_tensor(
      originals,
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        if (!dtensor_impl(tensor) && tensor.dim() != 0) {
          arguments.set(
              argument,
              list_index,
              make_dtensor(tensor, whole, tensor.sizes(), tensor.strides()));
        }
      });
  arguments.close();
}

// Returns true while autograd runs a node of libtorch. The plain tensors that
// derivative formulas create (zeros of global sizes, masks) are identical on
// every rank. Those of a user's autograd function (CppNode) may differ.
bool runs_formula_of_libtorch() {
  const auto node = torch::autograd::get_current_node();
  return node && node->name().find("CppNode") == std::string::npos;
}

// Returns true while autograd runs a derivative formula that writes only to
// tensors that it has just created. AccumulateGrad writes to a leaf's gradient
// instead, which must keep its placements.
bool writes_to_its_own() {
  const auto node = torch::autograd::get_current_node();
  return runs_formula_of_libtorch() &&
         !dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
}

// Replicates, in place, the DTensors that the op writes to. Returns false if
// all of them were replicated already.
bool make_written_whole(const c10::OperatorHandle& op, Arguments arguments) {
  bool any = false;
  const auto& schema = op.schema().arguments();
  for_each_tensor(
      arguments, [&](const at::Tensor& tensor, size_t argument, int64_t) {
        const auto* alias = schema[argument].alias_info();
        auto* impl = dtensor_impl(tensor);
        if (impl && alias && alias->isWrite() &&
            !impl->spec().is_replicated()) {
          const auto to = impl->spec().with(
              Placements(impl->spec().mesh_ndim(), Replicate()));
          auto whole = redistribute_local(
              impl->local(),
              impl->sizes(),
              impl->spec(),
              to,
              op.schema().name());
          // If `tensor` is a view, the write must reach its base. So `whole` is
          // linked to the previous local tensor as a copied view.
          auto link = make_copied_view(*impl, whole, to);
          impl->reset_local(std::move(whole), to);
          impl->copied_view = std::move(link);
          any = true;
        }
      });
  return any;
}

// Gives the views among the results the hooks of the parameter. Autograd saves
// views for backward, which then finds the hooks in them.
void share_hooks_with_views(
    const c10::OperatorHandle& op,
    const std::shared_ptr<ParameterHooks>& hooks,
    const Stack& stack) {
  const auto& returns = op.schema().returns();
  const size_t first = stack.size() - returns.size();
  for (size_t i = 0; i < returns.size(); ++i) {
    const auto* alias = returns[i].alias_info();
    if (!alias || alias->isWrite()) {
      continue;
    }
    for_each_tensor(
        Arguments(&stack[first + i], 1),
        [&](const at::Tensor& view, size_t, int64_t) {
          if (auto* impl = dtensor_impl(view)) {
            impl->parameter_hooks = hooks;
          }
        });
  }
}

void run_read(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    const CallReader& reader,
    Arguments arguments,
    Stack& stack) {
  if (reader.has_deferred() && run_deferred(read_call(op, arguments), stack)) {
    return;
  }
  if (!reader.common()) {
    run_unplaced(op, stack);
    return;
  }
  if (reader.has_plain()) {
    if (!implicit_replication_enabled() && !runs_formula_of_libtorch()) {
      refuse_plain(op, arguments);
    }
    replicate_plain(op, DTensorSpec(*reader.common()), stack);
    dispatch_boxed(op, keys, &stack);
    return;
  }
  if (reader.has_copied_view()) {
    for_each_tensor(arguments, [](const at::Tensor& tensor, size_t, int64_t) {
      refresh(tensor);
    });
  }
  std::shared_ptr<const OpPlan> plan;
  try {
    plan = find_plan(reader, op, arguments);
  } catch (const c10::ValueError&) {
    if (!writes_to_its_own() || !make_written_whole(op, arguments)) {
      throw;
    }
    dispatch_boxed(op, keys, &stack);
    return;
  }
  run_plan(op, *plan, reader.common()->mesh(), stack);
}

} // namespace

void dispatch_boxed(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack) {
  // In DeferredInit, tensors that the op itself creates must not be deferred.
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet(c10::DispatchKey::DeferredInit));
  const auto arguments =
      torch::jit::last(*stack, op.schema().arguments().size());
  const CallReader reader(op, arguments);
  if (reader.parameter_hooks()) {
    const auto hooks = *reader.parameter_hooks();
    run_read(op, keys, reader, arguments, *stack);
    share_hooks_with_views(op, hooks, *stack);
    return;
  }
  run_read(op, keys, reader, arguments, *stack);
}

} // namespace weft::dtensor
