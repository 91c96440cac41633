#include "dtensor/op_plan.h"

#include <algorithm>
#include <limits>

#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "dtensor/parameter_info.h"
#include "dtensor/redistribute.h"
#include "mesh/error.h"

namespace weft::dtensor {
namespace {

bool has_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional);
}

at::Tensor meta_like(const at::Tensor& tensor) {
  if (!tensor.defined() || !dtensor_impl(tensor)) {
    return tensor;
  }
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

c10::IValue meta_argument(const c10::IValue& value) {
  if (value.isTensor()) {
    return meta_like(value.toTensor());
  }
  if (value.isTensorList()) {
    auto list = value.toTensorVector();
    for (auto& tensor : list) {
      tensor = meta_like(tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorVector();
    for (auto& tensor : list) {
      if (tensor) {
        tensor = meta_like(*tensor);
      }
    }
    return list;
  }
  if (value.isDevice()) {
    return c10::Device(at::kMeta);
  }
  return value;
}

void append_meta(const c10::IValue& value, std::vector<OutputMeta>& outputs) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (tensor.defined()) {
      outputs.push_back({tensor.sizes().vec(), tensor.strides().vec()});
    } else {
      outputs.emplace_back();
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      append_meta(tensor, outputs);
    }
  }
}

// Output sizes and strides from the global inputs, never from a local result:
// ranks with uneven shards would otherwise branch differently and hang.
std::vector<OutputMeta> infer_outputs(const OpCall& call, const Rule& rule) {
  if (rule.infer) {
    return rule.infer(call);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_meta_kernel(call.op),
      "[",
      call.name(),
      "] has neither a meta kernel nor an output rule.");
  torch::jit::Stack stack;
  for (const auto& argument : call.arguments) {
    stack.push_back(meta_argument(argument));
  }
  call.op.callBoxed(&stack);
  std::vector<OutputMeta> outputs;
  for (const auto& value : stack) {
    append_meta(value, outputs);
  }
  return outputs;
}

bool is_written(const OpCall& call, size_t argument) {
  const auto* alias = call.op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

// The tensors that an op writes to, which have to have the right sizes already:
// an op may not change what a DTensor is.
std::vector<OutputMeta> written_outputs(const OpCall& call, const Rule& rule) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !rule.view,
      "[",
      call.name(),
      "] would change the sizes or strides of a DTensor in place; arguments ",
      describe_arguments(call),
      ". Use the form of the op that returns a new tensor.");
  std::vector<OutputMeta> metas;
  for (const auto& input : call.tensors) {
    if (is_written(call, input.argument)) {
      metas.push_back({input.sizes().vec(), input.tensor.strides().vec()});
    }
  }
  if (!is_written(call, 0)) {
    const auto expected = infer_outputs(call, rule);
    for (size_t i = 0; i < metas.size() && i < expected.size(); ++i) {
      TORCH_CHECK_VALUE(
          metas[i].sizes == expected[i].sizes,
          "[",
          call.name(),
          "] out's sizes == the result's: ",
          c10::IntArrayRef(metas[i].sizes),
          " vs ",
          c10::IntArrayRef(expected[i].sizes),
          ". Give an out tensor of the result's sizes.");
    }
  }
  return metas;
}

double input_bytes(const TensorArgument& input) {
  return static_cast<double>(input.tensor.numel()) *
         static_cast<double>(input.tensor.element_size());
}

// What it costs to bring the call's tensors to a strategy's inputs; infinite
// where that is impossible.
double strategy_cost(
    const OpCall& call,
    const Rule& rule,
    const Strategy& strategy,
    const StrategyContext& context) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // A rule that says nothing of out= tensors.
  if (strategy.inputs.size() != call.tensors.size()) {
    return kNever;
  }
  double cost = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& input = call.tensors[i];
    const auto current =
        input.spec ? input.spec->placement(context.mesh_dim) : Replicate();
    const auto& wanted = strategy.inputs[i];
    if (is_written(call, input.argument) &&
        (wanted != current || strategy.outputs[0] != current)) {
      return kNever;
    }
    if (!input.spec) {
      if (wanted != Replicate()) {
        return kNever;
      }
    } else if (!rule.value_free) {
      cost += redistribute_cost(
          current, wanted, input_bytes(input), context.shards);
    } else if (wanted != current) {
      return kNever;
    }
  }
  return cost;
}

Strategy
choose(const OpCall& call, const Rule& rule, const StrategyContext& context) {
  auto candidates = rule.strategies(call, context);
  Strategy replicated{
      Placements(1, Replicate()), Placements(call.tensors.size(), Replicate())};
  if (rule.value_free) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.tensors[i].spec) {
        replicated.inputs[i] =
            call.tensors[i].spec->placement(context.mesh_dim);
      }
    }
  }
  candidates.push_back(std::move(replicated));
  double best = std::numeric_limits<double>::infinity();
  const Strategy* chosen = nullptr;
  for (const auto& candidate : candidates) {
    const double cost = strategy_cost(call, rule, candidate, context);
    if (cost < best) {
      best = cost;
      chosen = &candidate;
    }
  }
  TORCH_CHECK_VALUE(
      chosen != nullptr,
      "[",
      call.name(),
      "] cannot write to its tensor where it lies: arguments ",
      describe_arguments(call),
      ", mesh dim \"",
      call.mesh().mesh_dim_names()[context.mesh_dim],
      "\". Redistribute it first, or use the form of the op that returns a new "
      "tensor. (",
      call.mesh().describe_rank(),
      ")");
  return *chosen;
}

} // namespace

std::string describe_arguments(const OpCall& call) {
  std::string text = "(";
  for (const auto& input : call.tensors) {
    text += text.size() > 1 ? ", " : "";
    const auto name = parameter_name(input.tensor);
    text += name.empty() ? "" : "\"" + name + "\" ";
    text += c10::str(input.sizes()) + " ";
    text += input.spec ? to_string(input.spec->placements()) : "plain";
  }
  return text + ")";
}

OpPlan make_op_plan(const OpCall& call) {
  const Rule* rule = find_rule(call.op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      rule != nullptr,
      "[",
      call.name(),
      "] has no sharding rule; arguments ",
      describe_arguments(call),
      ". Compute with to_local() and from_local() around it. (",
      call.mesh().describe_rank(),
      ")");
  const bool writes = call.is_inplace();
  const auto metas =
      writes ? written_outputs(call, *rule) : infer_outputs(call, *rule);
  const int64_t mesh_ndim = call.mesh().ndim();
  std::vector<Placements> inputs(call.tensors.size(), Placements(mesh_ndim));
  std::vector<Placements> outputs(metas.size(), Placements(mesh_ndim));
  for (int64_t d = 0; d < mesh_ndim; ++d) {
    const StrategyContext context{
        d, call.mesh().size(d), call.mesh().size(), metas};
    const auto strategy = choose(call, *rule, context);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i][d] = strategy.inputs[i];
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i][d] = strategy.outputs.size() == 1 ? strategy.outputs[0]
                                                   : strategy.outputs.at(i);
    }
  }

  OpPlan plan;
  plan.reshapes = rule->reshapes;
  plan.inputs.resize(call.tensors.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (call.tensors[i].spec) {
      const auto target = call.common.with(inputs[i]);
      if (!(target == *call.tensors[i].spec)) {
        plan.inputs[i] = target.id();
        plan.copied_view |= rule->view;
      }
    }
  }
  std::vector<std::vector<int64_t>> local_outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto spec = call.common.with(outputs[i]);
    local_outputs.push_back(local_box(spec, metas[i].sizes).sizes);
    if (!writes) {
      plan.outputs.push_back({spec.id(), metas[i].sizes, metas[i].strides});
    }
  }
  if (rule->localize) {
    plan.local_arguments = rule->localize(call, local_outputs);
  }
  return plan;
}

} // namespace weft::dtensor
