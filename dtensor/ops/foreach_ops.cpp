#include "dtensor/ops/foreach_ops.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/ops/foreach_call.h"
#include "dtensor/ops/foreach_norm.h"
#include "dtensor/ops/fused_steps.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

// Note [Foreach ops]
// ~~~~~~~~~~~~~~~~~~
// An op on lists computes on the i-th tensors of its lists together. Each group
// of i-th tensors may be on another mesh. There are three ways:
// - An elementwise op whose i-th tensors all have the same spec, without
//   Partial, runs in one call on the local tensors. Optimizers use this way.
// - In all other cases a foreach op does what libtorch's own fallback does: it
//   calls the op for single tensors, whose rule decides which inputs are
//   redistributed and which reductions stay pending.
// - The steps of fused optimizers have no form for single tensors. See
//   dtensor/ops/fused_steps.h.

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;

// Runs libtorch's own foreach kernel, which loops over the op for single
// tensors.
void run_each(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const ForeachCall call(op, *stack);
  call.check_no_plain_tensors();
  call.unwrap_scalars();
  op.callBoxedForDispatchKey(
      c10::DispatchKey::CompositeExplicitAutograd, *stack);
}

// The metadata of a result of an elementwise op: that of the first list's
// tensor. It is read before to_locals() replaces the arguments.
struct ResultMeta {
  DTensorSpec spec;
  c10::DimVector sizes;
  c10::DimVector strides;
};

std::vector<std::optional<ResultMeta>> result_metas(const ForeachCall& call) {
  std::vector<std::optional<ResultMeta>> metas;
  for (const auto& element : call.first_list()) {
    auto& meta = metas.emplace_back();
    if (const auto* impl = dtensor_impl(element.toTensor())) {
      meta = ResultMeta{
          impl->spec(),
          c10::DimVector(impl->sizes()),
          c10::DimVector(impl->strides())};
    }
  }
  return metas;
}

void wrap_results(
    const std::vector<std::optional<ResultMeta>>& metas,
    c10::IValue& value) {
  auto results = std::move(value).toTensorList();
  for (size_t i = 0; i < metas.size(); ++i) {
    if (metas[i]) {
      results.set(
          i,
          make_dtensor(
              results.get(i),
              metas[i]->spec,
              metas[i]->sizes,
              metas[i]->strides));
    }
  }
  value = std::move(results);
}

void run_elementwise(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack) {
  const ForeachCall call(op, *stack);
  const bool returns = !op.schema().returns().empty();
  if (!call.is_aligned(/*dense=*/returns)) {
    run_each(op, keys, stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!returns) {
    const auto written = call.writes_to_note();
    call.to_locals();
    op.callBoxed(stack);
    call.note_writes(written);
    return;
  }
  const auto metas = result_metas(call);
  call.to_locals();
  op.callBoxed(stack);
  wrap_results(metas, stack->back());
}

at::Tensor placed_at(
    const at::Tensor& tensor,
    const DTensorSpec& to,
    const std::string& name) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl || impl->spec() == to || impl->spec().mesh() != to.mesh()) {
    return tensor;
  }
  check_materialized(tensor, name);
  return make_dtensor(
      redistribute_local(impl->local(), impl->sizes(), impl->spec(), to, name),
      to,
      impl->sizes(),
      impl->strides());
}

at::Tensor to_full(const at::Tensor& tensor, const std::string& name) {
  const auto* impl = dtensor_impl(tensor);
  return impl ? placed_at(
                    tensor,
                    impl->spec().with(
                        Placements(impl->spec().mesh_ndim(), Replicate())),
                    name)
              : tensor;
}

// Runs libtorch's functional form of an op that writes: it copies the arguments
// and runs the op on the copies. The op cannot redistribute tensors that it
// writes to, so they get the placements of the first list's tensors before.
// Tensors without dims and single tensors are replicated.
void run_functional(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const ForeachCall call(op, *stack);
  const auto& name = op.schema().name();
  std::vector<std::optional<DTensorSpec>> places;
  for (const auto& element : call.first_list()) {
    const auto* impl = dtensor_impl(element.toTensor());
    places.push_back(
        impl ? std::optional(impl->spec().without_partial()) : std::nullopt);
  }
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    auto& value = call.argument(i);
    if (value.isTensor()) {
      value = to_full(value.toTensor(), name);
    } else if (value.isTensorList()) {
      auto list = value.toTensorList().copy();
      for (size_t k = 0; k < list.size(); ++k) {
        const at::Tensor tensor = list.get(k);
        const bool follows = k < places.size() && places[k] && tensor.dim() > 0;
        list.set(
            k,
            follows ? placed_at(tensor, *places[k], name)
                    : to_full(tensor, name));
      }
      value = std::move(list);
    }
  }
  op.callBoxedForDispatchKey(
      c10::DispatchKey::CompositeExplicitAutograd, *stack);
}

// ---- gradient scalers -------------------------------------------------------

// The dims of a mesh that shard some of the gradients. Ranks along them see
// different parts and must agree on what they found.
struct Cuts {
  mesh::DeviceMesh mesh;
  std::vector<bool> dims;
};

void note_cuts(std::vector<Cuts>& all, const DTensorSpec& spec) {
  if (!spec.has_shard()) {
    return;
  }
  auto cuts = std::ranges::find_if(
      all, [&](const Cuts& known) { return known.mesh == spec.mesh(); });
  if (cuts == all.end()) {
    all.push_back({spec.mesh(), std::vector<bool>(spec.mesh_ndim())});
    cuts = all.end() - 1;
  }
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      cuts->dims[i] = true;
    }
  }
}

// Multiplies all gradients by inv_scale; found_inf becomes 1 on every rank if
// any rank found an element that is not finite.
// Collective: all ranks of the gradients' meshes.
void run_unscale(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const ForeachCall call(op, *stack);
  call.check_no_plain_tensors();
  call.check_no_partial_writes();
  std::vector<Cuts> cuts;
  for (const auto& element : call.first_list()) {
    if (const auto* impl = dtensor_impl(element.toTensor())) {
      note_cuts(cuts, impl->spec());
    }
  }
  const auto written = call.writes_to_note();
  call.to_locals();
  const auto found = call.argument(1).toTensor();
  op.callBoxed(stack);
  call.note_writes(written);
  for (const auto& [mesh, dims] : cuts) {
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i]) {
        mesh.group(static_cast<int64_t>(i))
            .all_reduce(found, ReduceOp::kMax, "found_inf")
            .wait();
      }
    }
  }
}

// ---- registration -----------------------------------------------------------

// Returns the elementwise ops, which can run on local tensors without
// communication.
const std::set<std::string_view>& elementwise_names() {
  static const std::set<std::string_view> names{
      "abs",   "acos",       "add",       "addcdiv",   "addcmul", "asin",
      "atan",  "ceil",       "clamp_max", "clamp_min", "copy",    "cos",
      "cosh",  "div",        "erf",       "erfc",      "exp",     "expm1",
      "floor", "frac",       "lerp",      "lgamma",    "log",     "log10",
      "log1p", "log2",       "maximum",   "minimum",   "mul",     "neg",
      "pow",   "reciprocal", "round",     "rsqrt",     "sigmoid", "sign",
      "sin",   "sinh",       "sqrt",      "sub",       "tan",     "tanh",
      "trunc", "zero"};
  return names;
}

bool has_out_argument(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const auto& argument) {
    return argument.is_out();
  });
}

enum class ForeachKernel {
  kNone,
  kEach,
  kElementwise,
  kFused,
  kFunctional,
  kUnscale
};

ForeachKernel foreach_kernel_of(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  const bool has_loop =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  if (name == "aten::_amp_foreach_non_finite_check_and_unscale_") {
    return ForeachKernel::kUnscale;
  }
  const auto functional = has_out_argument(op.schema())
                              ? ForeachKernel::kEach
                              : ForeachKernel::kFunctional;
  if (name.starts_with("aten::_amp_foreach_")) {
    return functional;
  }
  for (const auto* optimizer : {"adam", "adamw", "sgd", "adagrad"}) {
    const auto fused = std::string("aten::_fused_") + optimizer;
    if (name == fused + "_") {
      return ForeachKernel::kFused;
    }
    if (name == fused) {
      return functional;
    }
  }
  if (!name.starts_with("aten::_foreach_") || !has_loop) {
    return ForeachKernel::kNone;
  }
  name.remove_prefix(std::string_view("aten::_foreach_").size());
  if (name.ends_with('_')) {
    name.remove_suffix(1);
  }
  return elementwise_names().contains(name) && !has_out_argument(op.schema())
             ? ForeachKernel::kElementwise
             : ForeachKernel::kEach;
}

torch::CppFunction kernel_of(ForeachKernel way, const c10::OperatorHandle& op) {
  using torch::CppFunction;
  switch (way) {
    case ForeachKernel::kFused:
      return fused_step_kernel(op);
    case ForeachKernel::kElementwise:
      return CppFunction::makeFromBoxedFunction<&run_elementwise>();
    case ForeachKernel::kFunctional:
      return CppFunction::makeFromBoxedFunction<&run_functional>();
    case ForeachKernel::kUnscale:
      return CppFunction::makeFromBoxedFunction<&run_unscale>();
    default:
      return CppFunction::makeFromBoxedFunction<&run_each>();
  }
}

} // namespace

std::set<std::string> register_foreach_ops(torch::Library& library) {
  std::set<std::string> taken{"aten::_foreach_norm.Scalar"};
  library.impl("_foreach_norm.Scalar", TORCH_FN(foreach_norm));
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto way =
        op && op->hasSchema() ? foreach_kernel_of(*op) : ForeachKernel::kNone;
    const auto full = c10::toString(name);
    if (way == ForeachKernel::kNone || taken.contains(full)) {
      continue;
    }
    library.impl(full.c_str(), kernel_of(way, *op));
    taken.insert(full);
  }
  return taken;
}

} // namespace weft::dtensor
