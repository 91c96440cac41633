#include "dtensor/tensor/redistribution.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_run.h"
#include "dtensor/tensor/cross_rank_checks.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/parameter_info.h"
#include "dtensor/tensor/started_redistribution.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

// Returns the spec to which a tensor is redistributed. Errors describe the
// tensor.
DTensorSpec target_of(
    const at::Tensor& dtensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  try {
    Placements normalized;
    for (const auto& placement : placements) {
      normalized.push_back(placement.normalized(dtensor.dim()));
    }
    check_no_mixed_partials(placements, mesh, "redistribute");
    return fitted(DTensorSpec(mesh, normalized), dtensor.sizes());
  } catch (const c10::ValueError& error) {
    const auto where = " (" + mesh.describe_rank() + ")";
    std::string reason = error.what_without_backtrace();
    if (reason.ends_with(where)) {
      reason.resize(reason.size() - where.size());
    }
    mesh::throw_error<c10::ValueError>(c10::str(
        "[redistribute] ",
        describe(dtensor),
        " to ",
        to_string(placements),
        " on ",
        mesh.to_string(),
        ": ",
        reason,
        where));
  }
}

std::string label_of(const at::Tensor& dtensor) {
  const auto name = parameter_name(dtensor);
  return name.empty() ? "redistribute" : name;
}

CommDtypes comm_dtypes_of(
    const at::Tensor& dtensor,
    const RedistributeOptions& options) {
  for (const auto& dtype : {options.forward_dtype, options.backward_dtype}) {
    TORCH_CHECK_VALUE(
        !dtype || (at::isFloatingType(*dtype) &&
                   at::isFloatingType(dtensor.scalar_type())),
        "[redistribute] ",
        describe(dtensor),
        " cannot be communicated as ",
        dtype.value_or(dtensor.scalar_type()),
        ": forward_dtype and backward_dtype are of floating point, as the "
        "tensor. Cast it before. (",
        spec_of(dtensor).mesh().describe_rank(),
        ")");
  }
  CommDtypes comm_dtypes{options.forward_dtype, options.backward_dtype};
  if (comm_dtypes.forward && !comm_dtypes.backward) {
    comm_dtypes.backward = dtensor.scalar_type();
  }
  return comm_dtypes;
}

// Copies the local tensor of a result that is a view of its source. A shard of
// a replicated tensor can be one without autograd's knowledge, and a write to
// one must not change the other.
void own_memory(const at::Tensor& source, const at::Tensor& result) {
  auto* impl = dtensor_impl(result);
  if (!result.is_same(source) &&
      impl->local().is_alias_of(dtensor_impl(source)->local())) {
    impl->reset_local(impl->local().clone(), impl->spec());
  }
}

} // namespace

at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements) {
  return redistribute(dtensor, spec_of(dtensor).mesh(), placements);
}

at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options) {
  return redistribute(dtensor, spec_of(dtensor).mesh(), placements, options);
}

at::Tensor redistribute(
    const at::Tensor& dtensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const RedistributeOptions& options) {
  spec_of(dtensor);
  const auto target = target_of(dtensor, mesh, placements);
  const auto comm_dtypes = comm_dtypes_of(dtensor, options);
  auto result = redistribute_as(
      dtensor,
      target,
      label_of(dtensor),
      comm_dtypes.forward.value_or(dtensor.scalar_type()),
      comm_dtypes);
  own_memory(dtensor, result);
  return result;
}

// ---- Under way ----------------------------------------------------------

struct RedistributeWork::State {
  std::mutex mutex;
  at::Tensor source;
  DTensorSpec target;
  std::string name;
  CommDtypes comm_dtypes;
  bool records = false;
  std::optional<StartedRedistribution> run;
  at::Tensor result;

  at::Tensor finish() {
    at::Tensor output;
    {
      at::AutoDispatchBelowADInplaceOrView below;
      output = run->finish();
    }
    own_memory(source, output);
    if (records) {
      const at::AutoGradMode recording(true);
      record_redistribution(source, output, name, comm_dtypes);
    }
    return output;
  }
};

RedistributeWork::RedistributeWork(std::shared_ptr<State> state)
    : state_(std::move(state)) {}

at::Tensor RedistributeWork::wait() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->result.defined()) {
    state_->result = state_->finish();
    state_->run.reset();
    state_->source = at::Tensor();
  }
  return state_->result;
}

bool RedistributeWork::is_completed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->result.defined() || state_->run->is_completed();
}

RedistributeWork redistribute_async(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options) {
  const auto& spec = spec_of(dtensor);
  auto state = std::make_shared<RedistributeWork::State>();
  state->source = dtensor;
  state->target = target_of(dtensor, spec.mesh(), placements);
  state->name = label_of(dtensor);
  state->comm_dtypes = comm_dtypes_of(dtensor, options);
  state->records = records_graph(dtensor);
  const auto dtype = state->comm_dtypes.forward.value_or(dtensor.scalar_type());
  if (state->target == spec && dtype == dtensor.scalar_type()) {
    state->result = dtensor;
    return RedistributeWork(std::move(state));
  }
  check_materialized(dtensor, state->name);
  const at::AutoDispatchBelowADInplaceOrView below;
  state->run.emplace(dtensor, state->target, dtype, state->name);
  return RedistributeWork(std::move(state));
}

// ---- Many at once ---------------------------------------------------------

namespace {

using torch::autograd::variable_list;

struct Moves {
  std::vector<at::Tensor> dtensors;
  std::vector<DTensorSpec> targets;
};

std::vector<at::Tensor> move_together(
    const Moves& moves,
    const std::string& name) {
  at::AutoDispatchBelowADInplaceOrView below;
  std::vector<RedistributeRun> runs;
  for (size_t i = 0; i < moves.dtensors.size(); ++i) {
    const auto* impl = dtensor_impl(moves.dtensors[i]);
    runs.emplace_back(
        impl->local(), impl->sizes(), impl->spec(), moves.targets[i], name);
  }
  finish_coalesced(runs, name);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto* impl = dtensor_impl(moves.dtensors[i]);
    results.push_back(make_dtensor(
        runs[i].result(), moves.targets[i], impl->sizes(), impl->strides()));
    own_memory(moves.dtensors[i], results.back());
  }
  return results;
}

std::vector<at::Tensor> coalesced(const Moves& moves, const std::string& name);

struct CoalescedRedistributeBackward final : torch::autograd::Node {
  std::vector<DTensorSpec> targets;
  std::string label;

  std::string name() const override { return "CoalescedRedistributeBackward"; }
  variable_list apply(variable_list&& grads) override {
    Moves moves;
    std::vector<size_t> indices;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) {
        require_dtensor_gradient(grads[i], "redistribute_coalesced backward");
        moves.dtensors.push_back(grads[i]);
        moves.targets.push_back(targets[i]);
        indices.push_back(i);
      }
    }
    const auto moved = coalesced(moves, label);
    variable_list results(grads.size());
    for (size_t k = 0; k < indices.size(); ++k) {
      results[indices[k]] = moved[k];
    }
    return results;
  }
};

void record_together(
    const Moves& moves,
    std::vector<at::Tensor>& outputs,
    const std::string& name) {
  std::vector<at::Tensor> inputs;
  auto [pointer, node] = make_node<CoalescedRedistributeBackward>();
  node->label = name;
  std::vector<at::Tensor*> recorded;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (records_graph(moves.dtensors[i])) {
      inputs.push_back(moves.dtensors[i]);
      node->targets.push_back(
          dtensor_impl(moves.dtensors[i])->spec().without_partial());
      recorded.push_back(&outputs[i]);
    }
  }
  if (inputs.empty()) {
    return;
  }
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (auto* output : recorded) {
    torch::autograd::create_gradient_edge(*output, pointer);
  }
}

// Redistributes the tensors together, differentiably. Tensors that already have
// their placements are returned as they are.
std::vector<at::Tensor> coalesced(const Moves& moves, const std::string& name) {
  auto results = moves.dtensors;
  Moves moving;
  std::vector<size_t> indices;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!(dtensor_impl(results[i])->spec() == moves.targets[i])) {
      check_materialized(results[i], name);
      moving.dtensors.push_back(results[i]);
      moving.targets.push_back(moves.targets[i]);
      indices.push_back(i);
    }
  }
  auto moved = move_together(moving, name);
  record_together(moving, moved, name);
  for (size_t k = 0; k < indices.size(); ++k) {
    results[indices[k]] = moved[k];
  }
  return results;
}

} // namespace

std::vector<at::Tensor> redistribute_coalesced(
    const std::vector<at::Tensor>& dtensors,
    const std::vector<Placements>& placements) {
  TORCH_CHECK_VALUE(
      dtensors.size() == placements.size(),
      "[redistribute_coalesced] DTensors == lists of placements: ",
      dtensors.size(),
      " vs ",
      placements.size(),
      ". Give each its own.");
  Moves moves{dtensors, {}};
  for (size_t i = 0; i < dtensors.size(); ++i) {
    moves.targets.push_back(
        target_of(dtensors[i], spec_of(dtensors[i]).mesh(), placements[i]));
  }
  return coalesced(
      moves, dtensors.empty() ? std::string() : label_of(dtensors[0]));
}

} // namespace weft::dtensor
