#include "dtensor/ops/fused_steps.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <c10/util/MaybeOwned.h>
#include <torch/library.h>

#include "dtensor/ops/foreach_call.h"
#include "dtensor/ops/whole_vectors.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/write_counter.h"

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;

// ---- any step ---------------------------------------------------------------

// The tensor lists of a fused step, rearranged into complete vectors. The
// tensors must be plain. See Note [Whole vectors].
class FusedLists {
 public:
  explicit FusedLists(const ForeachCall& call, const c10::OperatorHandle& op) {
    if (std::ranges::all_of(call.first_list(), [](const c10::IValue& value) {
          return WholeVectors::is_whole(value.toTensor());
        })) {
      return;
    }
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (call.argument(i).isTensorList()) {
        lists_.push_back(
            {i,
             call.argument(i).toTensorVector(),
             arguments[i].name() == "state_steps"});
      }
    }
    std::vector<WholeVectors::List*> tensors;
    std::vector<WholeVectors::List*> numbers;
    for (auto& list : lists_) {
      (list.is_numbers ? numbers : tensors).push_back(&list.tensors);
    }
    vectors_.emplace(tensors, numbers);
    if (vectors_->any()) {
      for (const auto& list : lists_) {
        call.argument(list.argument) = list.tensors;
      }
    }
  }

  void copy_back() const {
    if (vectors_) {
      vectors_->copy_back();
    }
  }

 private:
  struct Argument {
    size_t argument;
    WholeVectors::List tensors;
    bool is_numbers;
  };
  std::vector<Argument> lists_;
  std::optional<WholeVectors> vectors_;
};

void run_fused(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const ForeachCall call(op, *stack);
  const auto written = call.writes_to_note();
  if (call.is_aligned(/*dense=*/false)) {
    call.to_locals();
  } else {
    call.align_to_first();
  }
  const FusedLists lists(call, op);
  op.callBoxed(stack);
  lists.copy_back();
  call.note_writes(written);
}

// ---- the step of a training loop --------------------------------------------

// The local tensors of a list, which must outlive this object. References are
// not counted, because for five lists of a hundred tensors that takes as long
// as all checks.
class LocalTensors {
 public:
  explicit LocalTensors(at::TensorList list) {
    tensors_.reserve(list.size());
    for (const auto& tensor : list) {
      const auto* impl = dtensor_impl(tensor);
      tensors_.push_back(Borrow::createBorrow(impl ? impl->local() : tensor));
    }
  }
  LocalTensors(const LocalTensors&) = delete;
  LocalTensors& operator=(const LocalTensors&) = delete;
  ~LocalTensors() {
    for (auto& tensor : tensors_) {
      Borrow::destroyBorrow(tensor);
    }
  }

  operator at::TensorList() const { return tensors_; }

 private:
  using Borrow = c10::MaybeOwnedTraits<at::Tensor>;
  std::vector<at::Tensor> tensors_;
};

// Returns true if all parameters are DTensors that can be used as they are and
// consist of complete vectors, and no writes to them are watched.
bool are_simple(at::TensorList parameters) {
  const void* mesh = nullptr;
  for (const auto& parameter : parameters) {
    auto* impl = dtensor_impl(parameter);
    if (!impl || !is_ready_first(*impl) ||
        !WholeVectors::is_whole(impl->local())) {
      return false;
    }
    if (impl->spec().mesh().id() != mesh) {
      mesh = impl->spec().mesh().id();
      if (are_writes_watched(impl->spec())) {
        return false;
      }
    }
  }
  return true;
}

// Returns true if an argument is a number, a missing tensor, or a list whose
// tensors have the placements of the parameters.
bool is_simple(at::TensorList list, at::TensorList parameters) {
  if (list.empty()) {
    return true;
  }
  if (list.size() != parameters.size()) {
    return false;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!lies_as(list[i], dtensor_impl(parameters[i]), /*dense=*/false)) {
      return false;
    }
  }
  return true;
}
bool is_simple(const std::optional<at::Tensor>& tensor, at::TensorList) {
  return !tensor;
}
bool is_simple(double, at::TensorList) {
  return true;
}

LocalTensors local(at::TensorList list) {
  return LocalTensors(list);
}
template <class Argument>
const Argument& local(const Argument& argument) {
  return argument;
}

// The kernel of a step with the op's own signature, because boxing five lists
// of a hundred tensors takes longer than the step of small ones. Calls that are
// not simple are boxed and passed to run_fused().
template <class Op, class Signature = typename Op::schema>
struct UnboxedStep;

template <class Op, class... Arguments>
struct UnboxedStep<Op, void(at::TensorList, Arguments...)> {
  static void run(at::TensorList parameters, Arguments... arguments) {
    if (are_simple(parameters) && (is_simple(arguments, parameters) && ...)) {
      const at::AutoDispatchBelowADInplaceOrView below;
      Op::call(local(parameters), local(arguments)...);
      return;
    }
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        Op::name, Op::overload_name);
    Stack stack;
    torch::jit::push(stack, parameters, arguments...);
    run_fused(op, {}, &stack);
  }
};

template <class Op>
bool is_op(const c10::OperatorHandle& op) {
  return op.schema().name() == Op::name &&
         op.schema().overload_name() == Op::overload_name;
}

} // namespace

torch::CppFunction fused_step_kernel(const c10::OperatorHandle& op) {
  using at::_ops::_fused_adam_;
  using at::_ops::_fused_adamw_;
  using at::_ops::_fused_sgd_;
  if (is_op<_fused_adamw_>(op)) {
    return torch::CppFunction(TORCH_FN(UnboxedStep<_fused_adamw_>::run));
  }
  if (is_op<_fused_adam_>(op)) {
    return torch::CppFunction(TORCH_FN(UnboxedStep<_fused_adam_>::run));
  }
  if (is_op<_fused_sgd_>(op)) {
    return torch::CppFunction(TORCH_FN(UnboxedStep<_fused_sgd_>::run));
  }
  return torch::CppFunction::makeFromBoxedFunction<&run_fused>();
}

} // namespace weft::dtensor
