#include "dtensor/dispatch.h"

#include <bit>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/op_plan.h"
#include "dtensor/redistribute.h"
#include "dtensor/special_ops.h"

// Note [Dispatch]
// ~~~~~~~~~~~~~~~
// Every aten op that libtorch does not itself compose from others has a boxed
// kernel at PrivateUse3, below autograd: it looks the call up in the mesh's
// plan cache (op, specs, sizes, strides, dtypes and plain arguments make the
// key), asks the rule on a miss, redistributes, calls the op on the local
// tensors and wraps the results. A few composite ops have kernels above
// autograd instead, see kernels/.

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;
using Key = c10::SmallVector<int64_t, 48>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0x9e3779b97f4a7c15ULL;
    for (const int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

struct PlanCache {
  std::mutex mutex;
  std::unordered_map<Key, std::shared_ptr<const OpPlan>, KeyHash> plans;
};

// Collects a call's tensors and, while at it, the key of its plan.
class CallReader {
 public:
  CallReader(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args)
      : call_{op, args, {}, {}} {
    key_.push_back(reinterpret_cast<int64_t>(&op.schema()));
    for (size_t i = 0; i < args.size(); ++i) {
      read(i, args[i]);
    }
  }

  OpCall& call() { return call_; }
  const Key& key() const { return key_; }
  bool cachable() const { return cachable_; }
  bool has_deferred() const { return has_deferred_; }
  const at::Tensor* plain() const { return plain_; }

 private:
  enum Tag : int64_t { kNone, kTensor, kPlain, kInt, kDouble, kBool, kList };

  void read(size_t i, const c10::IValue& value) {
    if (value.isTensor()) {
      read_tensor(i, -1, value.toTensor());
    } else if (value.isNone()) {
      key_.push_back(kNone);
    } else if (value.isInt()) {
      key_.append({kInt, value.toInt()});
    } else if (value.isBool()) {
      key_.append({kBool, value.toBool()});
    } else if (value.isDouble()) {
      key_.append({kDouble, std::bit_cast<int64_t>(value.toDouble())});
    } else if (value.isIntList()) {
      const auto list = value.toIntVector();
      key_.append({kList, static_cast<int64_t>(list.size())});
      key_.append(list.begin(), list.end());
    } else if (value.isTensorList()) {
      read_list(i, value.toTensorVector());
    } else if (value.isOptionalTensorList()) {
      std::vector<at::Tensor> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor.value_or(at::Tensor()));
      }
      read_list(i, list);
    } else if (value.isBoolList()) {
      for (const bool b : value.toBoolList()) {
        key_.append({kBool, b});
      }
    } else if (value.isDevice()) {
      key_.append({kInt, static_cast<int64_t>(value.toDevice().type())});
    } else {
      cachable_ = false;
    }
  }

  void read_list(size_t i, const std::vector<at::Tensor>& list) {
    key_.append({kList, static_cast<int64_t>(list.size())});
    for (size_t k = 0; k < list.size(); ++k) {
      read_tensor(i, static_cast<int64_t>(k), list[k]);
    }
  }

  void read_tensor(size_t i, int64_t list_index, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      key_.push_back(kNone);
      return;
    }
    const auto dtype = static_cast<int64_t>(tensor.scalar_type());
    if (auto* impl = dtensor_impl(tensor)) {
      has_deferred_ |= impl->deferred != nullptr;
      key_.append(
          {kTensor,
           reinterpret_cast<int64_t>(impl->spec().id()),
           dtype,
           impl->dim()});
      key_.append(impl->sizes().begin(), impl->sizes().end());
      key_.append(impl->strides().begin(), impl->strides().end());
      call_.tensors.push_back({i, list_index, tensor, impl->spec()});
      if (call_.common.mesh_ndim() == 0) {
        call_.common = impl->spec();
      }
    } else {
      if (tensor.dim() != 0) {
        plain_ = &call_.tensors.emplace_back(i, list_index, tensor).tensor;
      } else {
        call_.tensors.emplace_back(i, list_index, tensor);
      }
      key_.append({kPlain, dtype});
    }
  }

  OpCall call_;
  Key key_;
  bool cachable_ = true;
  bool has_deferred_ = false;
  const at::Tensor* plain_ = nullptr;
};

void replace_argument(
    c10::IValue& value,
    int64_t list_index,
    const at::Tensor& local) {
  if (list_index < 0) {
    value = local;
  } else if (value.isTensorList()) {
    auto list = value.toTensorVector();
    list[list_index] = local;
    value = std::move(list);
  } else {
    auto list = value.toOptionalTensorVector();
    list[list_index] = local;
    value = std::move(list);
  }
}

// Every tensor of one call lies on one mesh; an unplaced DTensor counts as
// replicated on it.
void unify_meshes(OpCall& call) {
  for (auto& input : call.tensors) {
    if (!input.spec || input.spec->mesh() == call.mesh()) {
      continue;
    }
    TORCH_CHECK_VALUE(
        input.spec->mesh_ndim() == 0,
        "[",
        call.name(),
        "] mixes meshes: ",
        call.mesh().to_string(),
        " vs ",
        input.spec->mesh().to_string(),
        ". Redistribute to one mesh first. (",
        call.mesh().describe_rank(),
        ")");
    input.spec = call.common.with(Placements(call.mesh().ndim(), Replicate()));
  }
}

void refuse_plain(const OpCall& call, const at::Tensor& plain) {
  TORCH_CHECK_VALUE(
      false,
      "[",
      call.name(),
      "] mixes DTensors with a plain tensor of sizes ",
      plain.sizes(),
      "; arguments ",
      describe_arguments(call),
      ". Make it a DTensor with distribute_tensor() (a whole tensor) or "
      "from_local() (this rank's part). (",
      call.mesh().describe_rank(),
      ")");
}

at::Tensor wrap_unplaced(const at::Tensor& local) {
  return make_dtensor(local, DTensorSpec(), local.sizes(), local.strides());
}

bool returns_argument(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() && schema.returns()[0].alias_info() &&
         schema.returns()[0].alias_info()->isWrite();
}

// What an op that writes to arguments returns: those arguments.
std::vector<at::Tensor> written_arguments(const OpCall& call) {
  std::vector<at::Tensor> written;
  for (const auto& input : call.tensors) {
    const auto* alias =
        call.op.schema().arguments()[input.argument].alias_info();
    if (alias && alias->isWrite()) {
      written.push_back(input.tensor);
    }
  }
  return written;
}

template <class Wrap>
void wrap_results(Stack& stack, size_t returns, const Wrap& wrap) {
  for (auto it = stack.end() - static_cast<int64_t>(returns); it != stack.end();
       ++it) {
    if (it->isTensor()) {
      *it = wrap(it->toTensor());
    } else if (it->isTensorList()) {
      auto list = it->toTensorVector();
      for (auto& tensor : list) {
        tensor = wrap(tensor);
      }
      *it = std::move(list);
    }
  }
}

// DTensors on no mesh are whole everywhere: the op runs on the local tensors
// and says itself what comes out.
void run_unplaced(const OpCall& call, Stack& stack) {
  // Inside DeferredInit, the op's own tensors are no parameters to be.
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKey::DeferredInit);
  const size_t first = stack.size() - call.arguments.size();
  for (const auto& input : call.tensors) {
    if (auto* impl = dtensor_impl(input.tensor)) {
      replace_argument(
          stack[first + input.argument], input.list_index, impl->local());
    }
  }
  call.op.callBoxed(&stack);
  const auto& schema = call.op.schema();
  if (returns_argument(schema)) {
    const auto written = written_arguments(call);
    for (size_t i = 0; i < written.size(); ++i) {
      if (auto* impl = dtensor_impl(written[i])) {
        impl->set_global_geometry(
            impl->local().sizes(), impl->local().strides());
      }
      if (i < schema.returns().size()) {
        stack[stack.size() - schema.returns().size() + i] = written[i];
      }
    }
    return;
  }
  wrap_results(stack, schema.returns().size(), [](const at::Tensor& t) {
    return t.defined() ? wrap_unplaced(t) : t;
  });
}

std::shared_ptr<const OpPlan> find_plan(CallReader& reader) {
  auto& call = reader.call();
  if (!reader.cachable()) {
    return std::make_shared<const OpPlan>(make_op_plan(call));
  }
  auto& cache = call.mesh().extension<PlanCache>();
  {
    const std::lock_guard lock(cache.mutex);
    if (const auto it = cache.plans.find(reader.key());
        it != cache.plans.end()) {
      return it->second;
    }
  }
  auto plan = std::make_shared<const OpPlan>(make_op_plan(call));
  const std::lock_guard lock(cache.mutex);
  cache.plans.emplace(reader.key(), plan);
  return plan;
}

// A view of the whole may be none of this rank's part, e.g. of a slice that a
// user passed to from_local().
void make_viewable(c10::IValue& value, c10::IntArrayRef sizes) {
  const auto& local = value.toTensor();
  if (!local.is_contiguous() &&
      !at::detail::computeStride(local.sizes(), local.strides(), sizes)) {
    value = local.contiguous();
  }
}

// See OpPlan::copied_view.
void refuse_write_to_copy(
    const OpCall& call,
    const std::vector<at::Tensor>& written) {
  for (const auto& tensor : written) {
    const auto* impl = dtensor_impl(tensor);
    TORCH_CHECK_VALUE(
        !impl || !impl->is_copied_view,
        "[",
        call.name(),
        "] writes to ",
        describe(tensor),
        ", a view that had to be communicated and is a copy: the write would "
        "be lost. Write to the tensor it was taken from, or clone() it first. "
        "(",
        call.mesh().describe_rank(),
        ")");
  }
}

// Under InferenceMode a view of a normal tensor is a normal tensor, though new
// ones are not.
bool is_view_of_normal(const OpCall& call) {
  const auto& schema = call.op.schema();
  const auto* alias =
      schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
  return alias && !alias->isWrite() && !call.tensors.empty() &&
         !call.tensors[0].tensor.is_inference();
}

void run_plan(const OpCall& call, const OpPlan& plan, Stack& stack) {
  const size_t first = stack.size() - call.arguments.size();
  const auto written = plan.outputs.empty() ? written_arguments(call)
                                            : std::vector<at::Tensor>();
  refuse_write_to_copy(call, written);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& input = call.tensors[i];
    auto* impl = dtensor_impl(input.tensor);
    if (!impl) {
      continue;
    }
    auto& slot = stack[first + input.argument];
    if (plan.inputs[i]) {
      replace_argument(
          slot,
          input.list_index,
          redistribute_local(
              impl->local(),
              impl->sizes(),
              *input.spec,
              DTensorSpec(call.mesh(), plan.inputs[i]),
              call.name()));
    } else {
      replace_argument(slot, input.list_index, impl->local());
    }
  }
  for (const auto& [argument, value] : plan.local_arguments) {
    stack[first + argument] = value;
  }
  if (plan.reshapes) {
    make_viewable(stack[first], stack[first + 1].toIntVector());
  }
  call.op.callBoxed(&stack);
  const size_t returns = call.op.schema().returns().size();
  if (plan.outputs.empty()) {
    for (size_t i = 0; i < std::min(returns, written.size()); ++i) {
      stack[stack.size() - returns + i] = written[i];
    }
    return;
  }
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled() && is_view_of_normal(call)) {
    normal.emplace(false);
  }
  size_t next = 0;
  wrap_results(stack, returns, [&](const at::Tensor& local) {
    const auto& output = plan.outputs.at(next++);
    if (!local.defined()) {
      return local;
    }
    auto result = make_dtensor(
        local,
        DTensorSpec(call.mesh(), output.spec),
        output.sizes,
        output.strides);
    dtensor_impl(result)->is_copied_view = plan.copied_view;
    return result;
  });
}

void dispatch(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto arguments =
      torch::jit::last(*stack, op.schema().arguments().size());
  CallReader reader(op, arguments);
  auto& call = reader.call();
  if (reader.has_deferred() && run_deferred(call, *stack)) {
    return;
  }
  if (call.common.mesh_ndim() == 0) {
    run_unplaced(call, *stack);
    return;
  }
  if (reader.plain()) {
    refuse_plain(call, *reader.plain());
  }
  unify_meshes(call);
  const auto plan = find_plan(reader);
  run_plan(call, *plan, *stack);
}

// Whether libtorch makes an op of others, so that those come here instead. A
// few (silu_backward) have both that and a kernel of their own: with a rule
// they run in one piece.
bool is_composed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeImplicitAutograd) &&
         !(op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && find_rule(op));
}

// Libraries unregister their kernels when destroyed: kept for the process.
struct Registration {
  torch::Library below_autograd{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::PrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library above_autograd{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library deferred{
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::DeferredInit,
      __FILE__,
      __LINE__};

  Registration() {
    auto taken = register_kernels(above_autograd, below_autograd);
    taken.merge(register_special_ops(below_autograd));
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) {
        continue;
      }
      const auto op = c10::Dispatcher::singleton().findOp(name);
      const auto full = name.overload_name.empty()
                            ? name.name
                            : name.name + "." + name.overload_name;
      if (op && op->hasSchema() && !taken.contains(full) && !is_composed(*op)) {
        below_autograd.impl(
            full.c_str(),
            torch::CppFunction::makeFromBoxedFunction<&dispatch>());
      }
    }
    register_deferred_init(deferred);
  }
};

} // namespace

void ensure_dispatch_registered() {
  static const Registration registration;
}

} // namespace weft::dtensor
