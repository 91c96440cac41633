#include "dtensor/dispatch.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

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
// plan cache, asks the op's rule on a miss, redistributes, calls the op on the
// local tensors and wraps the results. A few composite ops have kernels above
// autograd instead, see kernels/.

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;
using Arguments = c10::ArrayRef<c10::IValue>;

at::Tensor wrap_unplaced(const at::Tensor& local) {
  return make_dtensor(local, DTensorSpec(), local.sizes(), local.strides());
}

// ---- a call's tensors
// --------------------------------------------------------

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// Calls visit(tensor, argument, list_index) for the defined tensors.
template <class Visit>
void for_each_tensor(Arguments arguments, const Visit& visit) {
  const auto visit_defined =
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        if (tensor.defined()) {
          visit(tensor, argument, list_index);
        }
      };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    if (value.isTensor()) {
      visit_defined(value.toTensor(), i, -1);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      int64_t k = 0;
      for (const auto& element : value.toListRef()) {
        visit_defined(tensor_or_none(element), i, k++);
      }
    }
  }
}

// What the op's rule gets to see.
OpCall read_call(const c10::OperatorHandle& op, Arguments arguments) {
  OpCall call{op, arguments, {}, {}, {}};
  const auto& schema = op.schema().arguments();
  for_each_tensor(
      arguments,
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        const auto* impl = dtensor_impl(tensor);
        auto& list = schema[argument].is_out() ? call.outs : call.tensors;
        list.push_back(
            {argument,
             list_index,
             tensor,
             impl ? std::optional(impl->spec()) : std::nullopt});
        if (impl && call.common.mesh_ndim() == 0) {
          call.common = impl->spec();
        }
      });
  return call;
}

// Every tensor of one call lies on one mesh; an unplaced DTensor counts as
// replicated on it.
void unify_meshes(OpCall& call) {
  const auto unify = [&](TensorArgument& input) {
    if (!input.spec || input.spec->mesh() == call.mesh()) {
      return;
    }
    TORCH_CHECK_VALUE(
        input.spec->mesh_ndim() == 0,
        "[",
        call.name(),
        "] mixes meshes: ",
        call.mesh().to_string(),
        " vs ",
        input.spec->mesh().to_string(),
        "; arguments ",
        describe_arguments(call),
        ". Redistribute to one mesh first. (",
        call.mesh().describe_rank(),
        ")");
    input.spec = call.common.with(Placements(call.mesh().ndim(), Replicate()));
  };
  std::ranges::for_each(call.tensors, unify);
  std::ranges::for_each(call.outs, unify);
}

// ---- the plan of a call
// ------------------------------------------------------

// Note [Plan cache]
// ~~~~~~~~~~~~~~~~~
// A plan is a function of the op, the specs, global sizes, strides and dtypes
// of the tensors, and the plain arguments; these words are the key, read
// without allocating. The cache lives in the mesh, is shared by all threads of
// a rank, and is bounded: when the young half is full it becomes the old one,
// whose plans go unless they are asked for again. Shapes that change every
// step do not pile up.

using Key = c10::SmallVector<int64_t, 96>;

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

class PlanCache {
 public:
  using Plan = std::shared_ptr<const OpPlan>;

  Plan find(const Key& key) {
    const std::lock_guard lock(mutex_);
    if (const auto it = young_.find(key); it != young_.end()) {
      return it->second;
    }
    const auto it = old_.find(key);
    if (it == old_.end()) {
      return nullptr;
    }
    auto plan = it->second;
    insert_young(key, plan);
    return plan;
  }

  void insert(const Key& key, Plan plan) {
    const std::lock_guard lock(mutex_);
    insert_young(key, std::move(plan));
  }

 private:
  static constexpr size_t kHalf = 4096;
  using Map = std::unordered_map<Key, Plan, KeyHash>;

  void insert_young(const Key& key, Plan plan) {
    if (young_.size() >= kHalf) {
      old_ = std::exchange(young_, {});
    }
    young_.emplace(key, std::move(plan));
  }

  std::mutex mutex_;
  Map young_;
  Map old_;
};

// Reads a call's key and what has to be known of its tensors, without touching
// a reference count.
class CallReader {
 public:
  CallReader(const c10::OperatorHandle& op, Arguments arguments) {
    key_.push_back(reinterpret_cast<int64_t>(&op.schema()));
    for (const auto& value : arguments) {
      read(value);
    }
  }

  const Key& key() const { return key_; }
  bool cachable() const { return cachable_; }
  bool has_deferred() const { return has_deferred_; }
  /// A plain tensor of one dim or more is among the arguments.
  bool has_plain() const { return has_plain_; }
  /// The first DTensor that lies on a mesh of one dim or more, or null.
  const DTensorSpec* common() const { return common_; }

 private:
  enum Tag : int64_t {
    kNone,
    kTensor,
    kPlain,
    kInt,
    kDouble,
    kBool,
    kList,
    kDevice,
    kText
  };

  void read(const c10::IValue& value) {
    if (value.isTensor()) {
      read_tensor(value.toTensor());
    } else if (value.isNone()) {
      key_.push_back(kNone);
    } else if (value.isInt()) {
      key_.append({kInt, value.toInt()});
    } else if (value.isBool()) {
      key_.append({kBool, value.toBool()});
    } else if (value.isDouble()) {
      key_.append({kDouble, std::bit_cast<int64_t>(value.toDouble())});
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      key_.append(
          {kDevice, static_cast<int64_t>(device.type()), device.index()});
    } else if (value.isList()) {
      read_list(value.toListRef());
    } else if (value.isString()) {
      const auto text = value.toStringView();
      key_.append({kText, static_cast<int64_t>(text.size())});
      key_.append(text.begin(), text.end());
    } else {
      cachable_ = false;
    }
  }

  void read_list(c10::ArrayRef<c10::IValue> list) {
    key_.append({kList, static_cast<int64_t>(list.size())});
    for (const auto& element : list) {
      if (element.isInt()) {
        key_.push_back(element.toInt());
      } else {
        read(element);
      }
    }
  }

  void read_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      key_.push_back(kNone);
      return;
    }
    const auto dtype = static_cast<int64_t>(tensor.scalar_type()) << 8;
    auto* impl = dtensor_impl(tensor);
    if (!impl) {
      has_plain_ |= tensor.dim() != 0;
      key_.push_back(kPlain | dtype);
      return;
    }
    has_deferred_ |= impl->deferred != nullptr;
    if (!common_ && impl->spec().mesh_ndim() != 0) {
      common_ = &impl->spec();
    }
    key_.append(
        {kTensor | dtype | (impl->dim() << 16),
         reinterpret_cast<int64_t>(impl->spec().id())});
    key_.append(impl->sizes().begin(), impl->sizes().end());
    key_.append(impl->strides().begin(), impl->strides().end());
  }

  Key key_;
  bool cachable_ = true;
  bool has_deferred_ = false;
  bool has_plain_ = false;
  const DTensorSpec* common_ = nullptr;
};

std::shared_ptr<const OpPlan> make_plan(
    const c10::OperatorHandle& op,
    Arguments arguments) {
  auto call = read_call(op, arguments);
  unify_meshes(call);
  return std::make_shared<const OpPlan>(make_op_plan(call));
}

std::shared_ptr<const OpPlan> find_plan(
    const CallReader& reader,
    const c10::OperatorHandle& op,
    Arguments arguments) {
  if (!reader.cachable()) {
    return make_plan(op, arguments);
  }
  auto& cache = reader.common()->mesh().extension<PlanCache>();
  if (auto plan = cache.find(reader.key())) {
    return plan;
  }
  auto plan = make_plan(op, arguments);
  cache.insert(reader.key(), plan);
  return plan;
}

// ---- running it
// --------------------------------------------------------------

// Replaces tensors of the arguments on the stack by local ones, each list once.
class ArgumentReplacer {
 public:
  explicit ArgumentReplacer(c10::IValue* first) : first_(first) {}
  ArgumentReplacer(const ArgumentReplacer&) = delete;
  ArgumentReplacer& operator=(const ArgumentReplacer&) = delete;
  ~ArgumentReplacer() = default;

  at::Tensor get(size_t argument, int64_t list_index) {
    if (list_index < 0) {
      return first_[argument].toTensor();
    }
    open(argument);
    return list_[list_index];
  }

  void set(size_t argument, int64_t list_index, at::Tensor local) {
    if (list_index < 0) {
      first_[argument] = std::move(local);
    } else {
      open(argument);
      list_[list_index] = std::move(local);
    }
  }

  // Writes the list that is open back to its argument.
  void close() {
    if (!is_open_) {
      return;
    }
    is_open_ = false;
    auto& value = first_[argument_];
    if (value.isTensorList()) {
      value = std::move(list_);
      return;
    }
    c10::List<std::optional<at::Tensor>> tensors;
    for (auto& tensor : list_) {
      tensors.push_back(
          tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
    }
    value = std::move(tensors);
  }

 private:
  void open(size_t argument) {
    if (is_open_ && argument_ == argument) {
      return;
    }
    close();
    list_.clear();
    for (const auto& element : first_[argument].toListRef()) {
      list_.emplace_back(tensor_or_none(element));
    }
    argument_ = argument;
    is_open_ = true;
  }

  c10::IValue* first_;
  bool is_open_ = false;
  size_t argument_ = 0;
  std::vector<at::Tensor> list_;
};

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

// What an op that writes to arguments returns: those arguments.
void return_written(
    Stack& stack,
    size_t returns,
    c10::ArrayRef<at::Tensor> written) {
  for (size_t i = 0; i < std::min(returns, written.size()); ++i) {
    stack[stack.size() - returns + i] = written[i];
  }
}

// DTensors on no mesh are whole everywhere: the op runs on the local tensors
// and says itself what comes out.
void run_unplaced(const c10::OperatorHandle& op, Stack& stack) {
  // Inside DeferredInit, the op's own tensors are no parameters to be.
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
    const c10::OperatorHandle& op,
    const at::Tensor& written) {
  const auto* impl = dtensor_impl(written);
  TORCH_CHECK_VALUE(
      !impl->is_copied_view,
      "[",
      op.schema().name(),
      "] writes to ",
      describe(written),
      ", a view that had to be communicated and is a copy: the write would "
      "be lost. Write to the tensor it was taken from, or clone() it first. "
      "(",
      impl->spec().mesh().describe_rank(),
      ")");
}

// One call of an op by its plan.
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
    enter_inputs();
    enter_outs();
    for (const auto& [argument, value] : plan_.local_arguments) {
      stack_[first_ + argument] = value;
    }
    if (plan_.reshapes) {
      make_viewable(stack_[first_], stack_[first_ + 1].toIntVector());
    }
    op_.callBoxed(&stack_);
    if (plan_.writes) {
      leave_outs();
      return_written(stack_, returns_, written_);
      return;
    }
    std::optional<c10::InferenceMode> normal;
    if (normal_view) {
      normal.emplace(false);
    }
    if (plan_.whole_results) {
      wrap_whole();
    } else {
      wrap_planned();
    }
  }

 private:
  // Under InferenceMode a view of a normal tensor is a normal tensor, though
  // new ones are not.
  bool makes_normal_view() const {
    return plan_.is_view && c10::InferenceMode::is_enabled() &&
           stack_[first_].isTensor() &&
           !stack_[first_].toTensor().is_inference();
  }

  void enter_inputs() {
    ArgumentReplacer arguments(&stack_[first_]);
    for (const auto& input : plan_.inputs) {
      const auto tensor = arguments.get(input.argument, input.list_index);
      auto* impl = dtensor_impl(tensor);
      if (input.is_written) {
        refuse_write_to_copy(op_, tensor);
        written_.push_back(tensor);
      }
      arguments.set(
          input.argument,
          input.list_index,
          input.to ? redistribute_local(
                         impl->local(),
                         impl->sizes(),
                         DTensorSpec(mesh_, input.from),
                         DTensorSpec(mesh_, input.to),
                         op_.schema().name())
                   : impl->local());
    }
    arguments.close();
  }

  void enter_outs() {
    for (const auto& out : plan_.outs) {
      auto& slot = stack_[first_ + out.argument];
      written_.push_back(slot.toTensor());
      refuse_write_to_copy(op_, written_.back());
      const auto& local = dtensor_impl(written_.back())->local();
      slot = out.result ? at::empty({0}, local.options()) : local;
    }
  }

  // Results that lie elsewhere than their out= tensors.
  void leave_outs() {
    for (size_t i = 0; i < plan_.outs.size(); ++i) {
      const auto& out = plan_.outs[i];
      if (!out.result) {
        continue;
      }
      const auto& result = stack_[stack_.size() - returns_ + i].toTensor();
      auto* impl =
          dtensor_impl(written_[written_.size() - plan_.outs.size() + i]);
      impl->local().copy_(redistribute_local(
          result,
          impl->sizes(),
          DTensorSpec(mesh_, out.result),
          DTensorSpec(mesh_, out.spec),
          op_.schema().name()));
    }
  }

  void wrap_whole() {
    wrap_results(stack_, returns_, [&](const at::Tensor& local) {
      return local.defined() ? make_dtensor(
                                   local,
                                   DTensorSpec(mesh_, plan_.whole_results),
                                   local.sizes(),
                                   local.strides())
                             : local;
    });
  }

  void wrap_planned() {
    size_t next = 0;
    wrap_results(stack_, returns_, [&](const at::Tensor& local) {
      const auto& output = plan_.outputs.at(next++);
      if (!local.defined()) {
        return local;
      }
      auto result = make_dtensor(
          local, DTensorSpec(mesh_, output.spec), output.sizes, output.strides);
      dtensor_impl(result)->is_copied_view = plan_.copied_view;
      return result;
    });
  }

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const mesh::DeviceMesh mesh_;
  Stack& stack_;
  const size_t first_;
  const size_t returns_;
  c10::SmallVector<at::Tensor, 2> written_;
};

void refuse_plain(const c10::OperatorHandle& op, Arguments arguments) {
  const auto call = read_call(op, arguments);
  TORCH_CHECK_VALUE(
      false,
      "[",
      call.name(),
      "] mixes DTensors with a plain tensor; arguments ",
      describe_arguments(call),
      ". Make it a DTensor with distribute_tensor() (a whole tensor) or "
      "from_local() (this rank's part). (",
      call.mesh().describe_rank(),
      ")");
}

void dispatch(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto arguments =
      torch::jit::last(*stack, op.schema().arguments().size());
  const CallReader reader(op, arguments);
  if (reader.has_deferred() && run_deferred(read_call(op, arguments), *stack)) {
    return;
  }
  if (!reader.common()) {
    run_unplaced(op, *stack);
    return;
  }
  if (reader.has_plain()) {
    refuse_plain(op, arguments);
  }
  const auto plan = find_plan(reader, op, arguments);
  PlanRun(op, *plan, reader.common()->mesh(), *stack).run();
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
