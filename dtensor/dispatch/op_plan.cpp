#include "dtensor/dispatch/op_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include <ATen/MemoryOverlap.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

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

// Returns the output sizes and strides, inferred from the global inputs and
// never from a local result: ranks with uneven shards would otherwise branch
// differently and hang.
std::vector<OutputMeta> infer_outputs(const OpCall& call, const Rule& rule) {
  if (rule.infer) {
    return rule.infer(call);
  }
  TORCH_INTERNAL_ASSERT(
      has_meta_kernel(call.op),
      call.name(),
      " has neither a meta kernel nor an output rule");
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

OutputMeta meta_of(const TensorArgument& argument) {
  return {argument.sizes().vec(), argument.tensor.strides().vec()};
}

// Throws if elements of a written tensor share memory. The global strides
// decide, because this rank's part of an expanded tensor may have each element
// only once while another rank's has not.
void check_overlap(const OpCall& call, const at::Tensor& written) {
  TORCH_CHECK_VALUE(
      at::has_internal_overlap(written) != at::MemOverlap::Yes,
      "[",
      call.name(),
      "] writes to a tensor whose elements share memory, e.g. an expanded one; "
      "arguments ",
      describe_arguments(call),
      ". Write to a clone() of it. (",
      call.mesh().describe_rank(),
      ")");
}

// Checks that each out= tensor already has the result's sizes, because an op
// must not change the sizes of a DTensor.
void check_outs(const OpCall& call, const std::vector<OutputMeta>& expected) {
  for (size_t i = 0; i < call.outs.size() && i < expected.size(); ++i) {
    check_overlap(call, call.outs[i].tensor);
    TORCH_CHECK_VALUE(
        call.outs[i].sizes() == c10::IntArrayRef(expected[i].sizes),
        "[",
        call.name(),
        "] out's sizes == the result's: ",
        call.outs[i].sizes(),
        " vs ",
        c10::IntArrayRef(expected[i].sizes),
        "; arguments ",
        describe_arguments(call),
        ". Give an out tensor of the result's sizes. (",
        call.mesh().describe_rank(),
        ")");
  }
}

std::vector<OutputMeta> output_metas(const OpCall& call, const Rule& rule) {
  std::vector<OutputMeta> metas;
  if (!call.outs.empty()) {
    if (rule.infer || (rule.strategies && has_meta_kernel(call.op))) {
      metas = infer_outputs(call, rule);
      check_outs(call, metas);
    }
    if (metas.empty()) {
      std::ranges::transform(call.outs, std::back_inserter(metas), meta_of);
    }
    return metas;
  }
  if (!call.is_inplace()) {
    return rule.strategies || rule.infer ? infer_outputs(call, rule) : metas;
  }
  TORCH_CHECK_VALUE(
      !rule.view,
      "[",
      call.name(),
      "] would change the sizes or strides of a DTensor in place; arguments ",
      describe_arguments(call),
      ". Use the form of the op that returns a new tensor. (",
      call.mesh().describe_rank(),
      ")");
  for (const auto& input : call.tensors) {
    if (is_written(call, input.argument)) {
      check_overlap(call, input.tensor);
      metas.push_back(meta_of(input));
    }
  }
  return metas;
}

double input_bytes(const TensorArgument& input) {
  return static_cast<double>(input.tensor.numel()) *
         static_cast<double>(input.tensor.element_size());
}

Placement current_placement(const TensorArgument& input, int64_t mesh_dim) {
  return input.spec ? input.spec->placement(mesh_dim) : Replicate();
}

const Placement& output_of(const Strategy& strategy, size_t output) {
  return strategy.outputs.size() == 1 ? strategy.outputs[0]
                                      : strategy.outputs.at(output);
}

// Returns the cost of redistributing the call's tensors to a strategy's inputs
// and its results to the out= tensors. Infinity means that this is impossible.
double strategy_cost(
    const OpCall& call,
    const Rule& rule,
    const Strategy& strategy,
    const StrategyContext& context,
    const mesh::LinkCost& link) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  TORCH_INTERNAL_ASSERT(
      strategy.inputs.size() == call.tensors.size(),
      call.name(),
      ": a strategy names ",
      strategy.inputs.size(),
      " inputs of ",
      call.tensors.size());
  double cost = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& input = call.tensors[i];
    const auto current = current_placement(input, context.mesh_dim);
    const auto& wanted = strategy.inputs[i];
    if (is_written(call, input.argument) &&
        (wanted != current ||
         (call.is_inplace() && strategy.outputs[0] != current))) {
      return kNever;
    }
    if (!input.spec) {
      if (wanted != Replicate()) {
        return kNever;
      }
    } else if (!rule.value_free) {
      cost += redistribute_cost(
          current, wanted, input_bytes(input), context.shards, link);
    } else if (wanted != current) {
      return kNever;
    }
  }
  for (size_t i = 0; i < call.outs.size(); ++i) {
    cost += redistribute_cost(
        output_of(strategy, i),
        current_placement(call.outs[i], context.mesh_dim),
        input_bytes(call.outs[i]),
        context.shards,
        link);
  }
  return cost;
}

// Note [Other cuts]
// ~~~~~~~~~~~~~~~~~
// Rules name Shard(d), which shards by the chunk rule. Most strategies hold for
// any other sharding (given sizes, StridedShard) that all sharded tensors
// share. These strategies are offered once more with each such shard of the
// inputs, if the dims in question have one size. The other strategies
// (chunked_only) are dropped as soon as an input has another sharding along any
// mesh dim, because their assumptions may not hold. The given sizes of a Shard
// count the rows that the shards of the mesh dims before it leave. That number
// can change while the placements of those dims are chosen. Strategies whose
// sizes then do not add up are dropped, too.

bool is_other_cut(const Placement& placement) {
  return placement.is_shard() && !placement.is_chunked();
}

bool has_other_cut(const OpCall& call) {
  return std::ranges::any_of(call.tensors, [](const auto& input) {
    return input.spec &&
           std::ranges::any_of(input.spec->placements(), is_other_cut);
  });
}

// Returns `strategy` with `cut` in place of its Shards, or nullopt if one of
// them shards a dim that is not of `size`.
std::optional<Strategy> with_cut(
    const OpCall& call,
    const Strategy& strategy,
    const StrategyContext& context,
    const Placement& cut,
    int64_t size) {
  Strategy other = strategy;
  bool fits = true;
  const auto replace = [&](Placement& placement, c10::IntArrayRef sizes) {
    if (placement.is_shard()) {
      fits &= sizes[placement.tensor_dim()] == size;
      placement = cut.with_tensor_dim(placement.tensor_dim());
    }
  };
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    replace(other.inputs[i], call.tensors[i].sizes());
  }
  if (other.outputs.size() == 1) {
    other.outputs.resize(context.outputs.size(), other.outputs[0]);
  }
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    replace(other.outputs[i], context.outputs[i].sizes);
  }
  return fits ? std::optional(other) : std::nullopt;
}

void add_other_cuts(
    const OpCall& call,
    const Rule& rule,
    const StrategyContext& context,
    std::vector<Strategy>& candidates) {
  std::erase_if(candidates, [](const auto& c) { return c.chunked_only; });
  const size_t count = candidates.size();
  for (const auto& input : call.tensors) {
    const auto cut = current_placement(input, context.mesh_dim);
    // Parts of a StridedShard may not be boxes. They then have no offset, which
    // a rule needs for its local arguments.
    if (!is_other_cut(cut) || (cut.is_strided() && rule.localize)) {
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (auto other = with_cut(
              call,
              candidates[i],
              context,
              cut,
              input.sizes()[cut.tensor_dim()])) {
        candidates.push_back(std::move(*other));
      }
    }
  }
}

Strategy
replicated_strategy(const OpCall& call, const Rule& rule, int64_t mesh_dim) {
  Strategy replicated{
      Placements(1, Replicate()), Placements(call.tensors.size(), Replicate())};
  if (rule.value_free) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      replicated.inputs[i] = current_placement(call.tensors[i], mesh_dim);
    }
  }
  return replicated;
}

// The placements chosen so far: one list per tensor, with one placement per
// mesh dim. Mesh dims that are not chosen yet are Replicate.
struct Choices {
  std::vector<Placements> inputs;
  std::vector<Placements> outputs;
};

bool given_rows_fit(
    const OpCall& call,
    const StrategyContext& context,
    const Choices& before,
    const Strategy& strategy) {
  const auto fits = [&](Placements placements,
                        const Placement& next,
                        c10::IntArrayRef sizes) {
    placements[context.mesh_dim] = next;
    return dtensor::given_rows_fit(placements, call.mesh().shape(), sizes);
  };
  for (size_t i = 0; i < before.inputs.size(); ++i) {
    if (!fits(before.inputs[i], strategy.inputs[i], call.tensors[i].sizes())) {
      return false;
    }
  }
  for (size_t i = 0; i < before.outputs.size(); ++i) {
    if (!fits(
            before.outputs[i],
            output_of(strategy, i),
            context.outputs[i].sizes)) {
      return false;
    }
  }
  return true;
}

Strategy choose(
    const OpCall& call,
    const Rule& rule,
    const StrategyContext& context,
    const Choices& before) {
  std::vector<Strategy> candidates;
  // Without known output sizes (only the data determine them, e.g. of
  // masked_select), every rank needs the full inputs.
  if (rule.strategies && !context.outputs.empty()) {
    candidates = rule.strategies(call, context);
    if (has_other_cut(call)) {
      add_other_cuts(call, rule, context, candidates);
      std::erase_if(candidates, [&](const Strategy& candidate) {
        return !given_rows_fit(call, context, before, candidate);
      });
    }
  }
  candidates.push_back(replicated_strategy(call, rule, context.mesh_dim));
  double best = std::numeric_limits<double>::infinity();
  const Strategy* chosen = nullptr;
  const auto link = mesh::link_cost(call.mesh(), context.mesh_dim);
  for (const auto& candidate : candidates) {
    const double cost = strategy_cost(call, rule, candidate, context, link);
    if (cost < best) {
      best = cost;
      chosen = &candidate;
    }
  }
  TORCH_CHECK_VALUE(
      chosen != nullptr,
      "[",
      call.name(),
      "] cannot write in place to a tensor with these placements: arguments ",
      describe_arguments(call),
      ", mesh dim \"",
      call.mesh().mesh_dim_names()[context.mesh_dim],
      "\". Redistribute it first, or use the form of the op that returns a new "
      "tensor. (",
      call.mesh().describe_rank(),
      ")");
  return *chosen;
}

struct Chosen {
  std::vector<DTensorSpec> inputs;
  std::vector<DTensorSpec> outputs;
};

Chosen choose_all(
    const OpCall& call,
    const Rule& rule,
    const std::vector<OutputMeta>& metas) {
  const int64_t mesh_ndim = call.mesh().ndim();
  Choices choices{
      std::vector<Placements>(call.tensors.size(), Placements(mesh_ndim)),
      std::vector<Placements>(metas.size(), Placements(mesh_ndim))};
  auto& [inputs, outputs] = choices;
  for (int64_t d = 0; d < mesh_ndim; ++d) {
    const StrategyContext context{
        d, call.mesh().size(d), call.mesh().size(), metas};
    const auto strategy = choose(call, rule, context, choices);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i][d] = strategy.inputs[i];
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i][d] = output_of(strategy, i);
    }
  }
  Chosen chosen;
  for (size_t i = 0; i < inputs.size(); ++i) {
    chosen.inputs.push_back(
        call.tensors[i].spec ? call.common.with(inputs[i]) : DTensorSpec());
  }
  for (const auto& placements : outputs) {
    chosen.outputs.push_back(call.common.with(placements));
  }
  return chosen;
}

// Returns this rank's box, or only its sizes if some rank's part is not a box.
// A rule with `localize` sees such parts only if it is value_free: its inputs
// are never redistributed and may have any placements.
LocalBox box_or_sizes(const DTensorSpec& spec, c10::IntArrayRef sizes) {
  return has_local_boxes(spec, sizes) ? local_box(spec, sizes)
                                      : LocalBox{{}, local_sizes(spec, sizes)};
}

LocalCall local_call(
    const OpCall& call,
    const Chosen& chosen,
    const std::vector<OutputMeta>& metas) {
  LocalCall local{call, chosen.inputs, chosen.outputs, {}, {}};
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    local.inputs.push_back(
        box_or_sizes(chosen.inputs[i], call.tensors[i].sizes()));
  }
  for (size_t i = 0; i < metas.size(); ++i) {
    local.outputs.push_back(box_or_sizes(chosen.outputs[i], metas[i].sizes));
  }
  return local;
}

std::vector<OpPlan::Input> plan_inputs(
    const OpCall& call,
    const Chosen& chosen) {
  std::vector<OpPlan::Input> inputs;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& input = call.tensors[i];
    if (input.spec) {
      const bool moves = !(chosen.inputs[i] == *input.spec);
      inputs.push_back(
          {input.argument,
           input.list_index,
           input.spec->id(),
           moves ? chosen.inputs[i].id() : nullptr,
           is_written(call, input.argument)});
    }
  }
  return inputs;
}

std::vector<OpPlan::Out> plan_outs(const OpCall& call, const Chosen& chosen) {
  std::vector<OpPlan::Out> outs;
  for (size_t i = 0; i < call.outs.size(); ++i) {
    const auto& out = call.outs[i];
    TORCH_CHECK_VALUE(
        out.spec.has_value(),
        "[",
        call.name(),
        "] out is a plain tensor: arguments ",
        describe_arguments(call),
        ". Give a DTensor, or none. (",
        call.mesh().describe_rank(),
        ")");
    const bool direct = *out.spec == chosen.outputs.at(i);
    outs.push_back(
        {out.argument,
         out.list_index,
         out.spec->id(),
         direct ? nullptr : chosen.outputs[i].id(),
         direct ? std::vector<int64_t>()
                : local_sizes(chosen.outputs[i], out.sizes())});
  }
  return outs;
}

bool returns_view(const OpCall& call) {
  const auto& returns = call.op.schema().returns();
  const auto* alias = returns.empty() ? nullptr : returns[0].alias_info();
  return alias && !alias->isWrite();
}

// Depends on global sizes only, so it is identical on every rank.
bool is_coalesced(const OpCall& call, const OpPlan& plan) {
  const auto is_moved = [](const OpPlan::Input& input) { return input.to; };
  if (std::ranges::count_if(plan.inputs, is_moved) < 2) {
    return false;
  }
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  size_t next = 0;
  for (const auto& input : call.tensors) {
    if (!input.spec) {
      continue;
    }
    const auto& planned = plan.inputs[next++];
    if (planned.to) {
      plans.push_back(find_plan(
          *input.spec,
          DTensorSpec(call.mesh(), planned.to),
          input.sizes(),
          static_cast<int64_t>(input.tensor.element_size())));
    }
  }
  return is_cheaper_coalesced(plans);
}

} // namespace

OpPlan make_op_plan(const OpCall& call) {
  const Rule* rule = find_rule(call.op);
  TORCH_CHECK_VALUE(
      rule != nullptr,
      "[",
      call.name(),
      "] has no sharding rule; arguments ",
      describe_arguments(call),
      ". Compute with to_local() and from_local() around it, or give it a rule "
      "with register_sharding(). (",
      call.mesh().describe_rank(),
      ")");
  const auto metas = output_metas(call, *rule);
  const auto chosen = choose_all(call, *rule, metas);

  OpPlan plan;
  plan.reshapes = rule->reshapes;
  plan.is_view = returns_view(call);
  plan.writes = call.is_inplace();
  plan.inputs = plan_inputs(call, chosen);
  plan.is_coalesced = is_coalesced(call, plan);
  plan.outs = plan_outs(call, chosen);
  if (!plan.writes && metas.empty()) {
    plan.replicated_results =
        call.common.with(Placements(call.mesh().ndim(), Replicate())).id();
  }
  for (size_t i = 0; !plan.writes && i < metas.size(); ++i) {
    plan.outputs.push_back(
        {chosen.outputs[i].id(), metas[i].sizes, metas[i].strides});
  }
  if (rule->localize && !plan.replicated_results) {
    plan.local_arguments = rule->localize(local_call(call, chosen, metas));
  }
  return plan;
}

} // namespace weft::dtensor
