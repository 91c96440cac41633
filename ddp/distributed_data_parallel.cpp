#include "ddp/distributed_data_parallel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data_parallel/comm_hooks/hook_state_rows.h"
#include "data_parallel/replicas/replica_difference.h"
#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/ddp_join.h"
#include "ddp/ddp_state.h"
#include "ddp/reducer/bucket_plan.h"
#include "ddp/reducer/unused_parameters.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/init/deferred_init.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using mesh::ReduceOp;

/// The key in a comm hook's saved state of the bucket layout it belongs to.
constexpr const char* kBucketNames = "ddp/buckets";

mesh::ErrorContext where(const mesh::DeviceMesh& dp) {
  return {dp.describe_rank()};
}

const data_parallel::NamedTensor* find_deferred(
    const std::vector<data_parallel::NamedTensor>& tensors) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& item) {
        return dtensor::is_deferred(item.tensor);
      });
  return found == tensors.end() ? nullptr : &*found;
}

void check_embeddings(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp) {
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const auto* embedding = item.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBagImpl>();
    const bool has_max_norm = (embedding && embedding->options.max_norm()) ||
                              (bag && bag->options.max_norm());
    WEFT_CHECK(
        !has_max_norm,
        "ddp",
        where(dp),
        item.key().empty() ? "the module" : "\"" + item.key() + "\"",
        " is an Embedding with max_norm, whose forward changes the rows that "
        "it looks up: replicas would diverge. Build it without max_norm, and "
        "limit the rows of all replicas after the optimizer's step.");
  }
}

void check_arguments(
    const torch::nn::Module* module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  WEFT_CHECK(
      dp.ndim() == 1,
      "ddp",
      where(dp),
      "mesh of 1 dim: ",
      dp.ndim(),
      " dims were given. Pass only the replicas' dim, e.g. mesh[\"dp\"].");
  WEFT_CHECK(
      module != nullptr, "ddp", where(dp), "the module is null. Pass a model.");
  if (dp.size() > 1) {
    check_embeddings(*module, dp);
  }
  WEFT_CHECK(
      options.reduce_op == ReduceOp::kAvg ||
          options.reduce_op == ReduceOp::kSum,
      "ddp",
      where(dp),
      "reduce_op must be kAvg or kSum, because the gradients of replicas are "
      "added.");
  WEFT_CHECK(
      !options.broadcast_buffers || !options.forward_sync_buffers ||
          *options.broadcast_buffers == *options.forward_sync_buffers,
      "ddp",
      where(dp),
      "broadcast_buffers and forward_sync_buffers differ. Set only "
      "forward_sync_buffers, the newer name.");
  WEFT_CHECK(
      !options.skip_all_reduce_unused_params ||
          options.find_unused_parameters || options.static_graph,
      "ddp",
      where(dp),
      "skip_all_reduce_unused_params requires find_unused_parameters or "
      "static_graph: otherwise a parameter without a gradient is an error.");
}

} // namespace

DistributedDataParallelBase::DistributedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module,
    const mesh::DeviceMesh& dp_mesh,
    const DistributedDataParallelOptions& options) {
  check_arguments(module.get(), dp_mesh, options);
  const auto selection = select_parameters(*module, dp_mesh, options);
  WEFT_CHECK(
      !selection.reduced.empty(),
      "ddp",
      where(dp_mesh),
      "none of the module's ",
      selection.parameters.size(),
      " parameters requires a gradient, so there is nothing to reduce. Wrap a "
      "model that trains, or call the module without DistributedDataParallel.");
  const bool is_deferred =
      find_deferred(data_parallel::parameters_of(*module)) ||
      find_deferred(data_parallel::buffers_of(*module));
  state_ = std::make_unique<State>(State{
      .module = std::move(module),
      .dp = dp_mesh,
      .options = options,
      .caps = bucket_caps(options.bucket_cap_mb, options.bucket_cap_mb_list)});
  if (!is_deferred) {
    synchronize_parameters();
  }
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

data_parallel::NoSyncGuard DistributedDataParallelBase::no_sync() {
  return data_parallel::NoSyncGuard(state_->paused);
}

const mesh::DeviceMesh& DistributedDataParallelBase::mesh() const {
  return state_->dp;
}

void DistributedDataParallelBase::synchronize_parameters() {
  auto& state = *state_;
  if (state.reducer) {
    return;
  }
  auto all = data_parallel::parameters_of(*state.module);
  const auto buffers = data_parallel::buffers_of(*state.module);
  all.insert(all.end(), buffers.begin(), buffers.end());
  if (const auto* deferred = find_deferred(all)) {
    WEFT_CHECK(
        false,
        "ddp",
        where(state.dp),
        deferred->name,
        " has no values yet. Call weft::dtensor::materialize(model, seed) "
        "before the first forward.");
  }
  const auto selection =
      select_parameters(*state.module, state.dp, state.options);
  if (state.options.init_sync) {
    state.sync_initial_values(selection);
  }
  state.cast_buffers();
  state.start(selection);
}

void DistributedDataParallelBase::before_forward(
    std::optional<int64_t> samples) {
  if (state_->joined) {
    state_->joined->begin_forward(samples);
  }
  synchronize_parameters();
  const bool needs_backward =
      at::GradMode::is_enabled() && *state_->paused == 0;
  if (needs_backward && state_->reducer->begin_iteration()) {
    log_iteration(state_->get_logging_data());
  }
  state_->reducer->begin_forward(needs_backward);
  try {
    state_->check_known();
  } catch (const c10::ValueError&) {
    if (!needs_backward || state_->dp.size() == 1) {
      throw;
    }
    // The other replicas may not see this error and would wait for the
    // reduction.
    state_->reducer->report(std::current_exception());
  }
  state_->sync_buffers_at(BufferCommHookLocation::PRE_FORWARD);
  if (state_->joined) {
    state_->joined->before_module();
  }
}

void DistributedDataParallelBase::after_forward(
    const std::vector<at::Tensor>& outputs) {
  if (state_->joined) {
    state_->joined->end_forward(outputs);
  }
  state_->end_forward();
  state_->reducer->end_forward(outputs, state_->module->is_training());
}

void DistributedDataParallelBase::join(
    const std::function<void()>& body,
    bool divide_by_initial_world_size,
    bool enable,
    bool throw_on_early_termination) {
  data_parallel::Join(
      {this},
      {.enable = enable,
       .throw_on_early_termination = throw_on_early_termination},
      {{"divide_by_initial_world_size", divide_by_initial_world_size}})
      .run(body);
}

std::shared_ptr<data_parallel::JoinHook> DistributedDataParallelBase::join_hook(
    const data_parallel::JoinKwargs& kwargs) {
  auto* join = running_join();
  WEFT_CHECK(
      join != nullptr,
      "join_hook",
      where(state_->dp),
      "no Join is running. Pass the wrapped model to Join and call run().");
  state_->joined = std::make_shared<DdpJoin>(*this, *state_, *join, kwargs);
  if (state_->reducer) {
    state_->reducer->set_join(state_->joined);
  }
  return state_->joined;
}

void DistributedDataParallelBase::leave_join() {
  if (!state_->joined) {
    return;
  }
  if (state_->reducer) {
    state_->reducer->set_join(nullptr);
    if (state_->joined->has_shadowed()) {
      state_->reducer->drop_gradients();
    }
  }
  // Ranks may have left the body at different micro-batches.
  state_->require_forward_param_sync = true;
  state_->joined.reset();
}

void DistributedDataParallelBase::abort_join() {
  for (const auto& item : state_->groups) {
    auto group = item.group;
    group.abort();
  }
  for (const auto& channel : sync_batch_norm_groups(*state_->module)) {
    auto group = channel->group();
    group.abort();
  }
}

c10::Device DistributedDataParallelBase::join_device() const {
  return state_->device();
}

mesh::Communicator DistributedDataParallelBase::join_process_group() const {
  return state_->dp.group(int64_t{0});
}

mesh::DeviceMesh DistributedDataParallelBase::join_model_parallel_mesh() const {
  return data_parallel::mesh_of_other_dims(
      dtensor::joint_mesh(*state_->module, state_->dp), state_->dp);
}

bool DistributedDataParallelBase::is_in_join_iteration() const {
  return state_->joined && state_->joined->is_in_iteration();
}

void DistributedDataParallelBase::sync_joinable_optimizer(
    torch::optim::Optimizer& optimizer) {
  WEFT_CHECK(
      state_->joined != nullptr,
      "join",
      where(state_->dp),
      "a JoinableOptimizer requires its DistributedDataParallel in the same "
      "Join. Pass both to the Join.");
  state_->joined->share_optimizer_state(optimizer);
}

std::optional<c10::ScalarType> DistributedDataParallelBase::input_dtype()
    const {
  const auto& precision = state_->options.mixed_precision;
  return precision && precision->cast_forward_inputs ? precision->param_dtype
                                                     : std::nullopt;
}

std::vector<std::vector<std::string>>
DistributedDataParallelBase::bucket_names() const {
  return state_->require_reducer("there are no buckets").bucket_names();
}

void DistributedDataParallelBase::set_bucket_layout(
    const std::vector<std::vector<std::string>>& layout) {
  synchronize_parameters();
  state_->reducer->set_bucket_layout(layout);
}

void DistributedDataParallelBase::register_comm_hook(
    std::shared_ptr<data_parallel::CommHook> hook) {
  auto& state = *state_;
  WEFT_CHECK(
      hook != nullptr,
      "register_comm_hook",
      where(state.dp),
      "the hook is null.");
  synchronize_parameters();
  state.check_hook(*hook);
  if (hook->can_be_tried()) {
    const auto& first = state.reduced.front().tensor;
    data_parallel::check_declaration(
        *hook,
        state.groups.front().group,
        data_parallel::local_part(first).device());
  }
  state.reducer->set_comm_hook(std::move(hook));
}

dtensor::StateDict DistributedDataParallelBase::comm_hook_state_dict() const {
  const auto hook = comm_hook();
  auto own = hook ? hook->state_dict() : data_parallel::CommHook::State();
  if (own.empty()) {
    return {};
  }
  // Without buckets the hook has no state of single buckets, and the first
  // backward of a resumed run makes the same buckets.
  if (state_->reducer->has_buckets()) {
    own.emplace(
        kBucketNames,
        data_parallel::pack_text(
            base::strict_json_text(nlohmann::json(bucket_names()))));
  }
  return data_parallel::to_rows(
      own, dtensor::joint_mesh(*state_->module, state_->dp));
}

std::shared_ptr<data_parallel::CommHook>
DistributedDataParallelBase::comm_hook() const {
  return state_->reducer ? state_->reducer->comm_hook() : nullptr;
}

void DistributedDataParallelBase::load_comm_hook_state_dict(
    const dtensor::StateDict& rows) {
  synchronize_parameters();
  const auto& hook = state_->reducer->comm_hook();
  WEFT_CHECK(
      hook != nullptr,
      "load_comm_hook_state_dict",
      where(state_->dp),
      "no hook is registered. Register the one that the state was saved with.");
  auto loaded = data_parallel::from_rows(
      rows,
      dtensor::joint_mesh(*state_->module, state_->dp),
      /*not_elsewhere=*/{kBucketNames});
  const auto names = loaded.extract(kBucketNames);
  if (names) {
    state_->adopt_buckets(data_parallel::unpack_text(names.mapped()));
  }
  hook->load_state_dict(loaded);
  if (!names && state_->reducer->has_buckets()) {
    hook->on_rebuilt_buckets();
  }
}

void DistributedDataParallelBase::register_buffer_comm_hook(
    BufferCommHook hook,
    BufferCommHookLocation location) {
  WEFT_CHECK(
      hook != nullptr,
      "register_buffer_comm_hook",
      where(state_->dp),
      "the hook is empty. Pass a function.");
  state_->buffer_hook = std::move(hook);
  state_->buffer_hook_location = location;
}

bool DistributedDataParallelBase::will_sync_module_buffers() const {
  return state_->syncs_buffers() &&
         !select_buffers(*state_->module, state_->options).empty();
}

std::shared_ptr<OptimizerInBackward>
DistributedDataParallelBase::register_fused_optim(
    const OptimizerFactory& factory,
    std::optional<std::vector<at::Tensor>> parameters) {
  synchronize_parameters();
  if (!parameters) {
    parameters.emplace();
    for (const auto& item : state_->reduced) {
      parameters->push_back(item.tensor);
    }
  }
  auto optimizers =
      OptimizerInBackward::make_without_hooks(*parameters, factory);
  register_fused_optim(optimizers);
  return optimizers;
}

void DistributedDataParallelBase::register_fused_optim(
    std::shared_ptr<OptimizerInBackward> optimizers) {
  synchronize_parameters();
  auto& state = *state_;
  for (const auto& parameter : optimizers->parameters()) {
    WEFT_CHECK(
        std::any_of(
            state.reduced.begin(),
            state.reduced.end(),
            [&](const auto& item) { return item.tensor.is_same(parameter); }),
        "register_fused_optim",
        where(state.dp),
        "one of the ",
        optimizers->parameters().size(),
        " parameters, of sizes ",
        parameter.sizes(),
        ", is none that this module trains. Pass the module's own.");
  }
  state.add_optimizers(std::move(optimizers));
}

void DistributedDataParallelBase::set_static_graph() {
  synchronize_parameters();
  state_->reducer->set_static_graph();
  state_->options.static_graph = true;
  state_->logging.static_graph = true;
}

void DistributedDataParallelBase::remove_autograd_hooks() {
  state_->require_reducer("there are no hooks").remove_autograd_hooks();
}

void DistributedDataParallelBase::check_reducer_finalized() const {
  state_->require_reducer("nothing was reduced").check_finalized();
}

void DistributedDataParallelBase::require_manual_backward_finalization(
    bool required) {
  synchronize_parameters();
  state_->reducer->require_manual_finalization(required);
}

bool DistributedDataParallelBase::should_finalize_after_backward() const {
  return state_->reducer && state_->reducer->should_finalize_after_backward();
}

void DistributedDataParallelBase::finalize_backward() {
  state_->require_reducer("nothing was reduced").finalize();
}

void DistributedDataParallelBase::reduce_without_inputs(
    const std::function<void()>& meanwhile) {
  auto& state = *state_;
  auto& reducer = state.require_reducer("nothing can be reduced");
  const auto refuse = [&](bool is_so, const char* why) {
    WEFT_CHECK(
        !is_so,
        "ddp",
        state.where(),
        "reduce_without_inputs() cannot be called ",
        why);
  };
  const bool has_others = state.dp.size() > 1;
  refuse(
      !reducer.has_buckets(),
      "before the first backward, which tells the order of the gradients. Run "
      "one forward and backward first.");
  refuse(
      state.joined != nullptr,
      "in a Join, which does the same for replicas without inputs. Leave the "
      "call out.");
  refuse(*state.paused > 0, "under no_sync(), where nothing is reduced.");
  refuse(
      has_others && finds_unused_in_each_step(state.options),
      "with find_unused_parameters, because the forward of the other replicas "
      "communicates. Use a Join.");
  refuse(
      has_others && state.has_synced_buffers(),
      "for a module with buffers that forward synchronizes. Set "
      "forward_sync_buffers to false, or use a Join.");
  refuse(
      !sync_batch_norm_groups(*state.module).empty(),
      "for a module with SyncBatchNorm, which exchanges statistics in forward. "
      "Use a Join.");
  reducer.shadow_backward(meanwhile ? meanwhile : [] {});
}

void DistributedDataParallelBase::update_process_group(
    const mesh::DeviceMesh& dp_mesh) {
  auto& state = *state_;
  check_arguments(state.module.get(), dp_mesh, state.options);
  WEFT_CHECK(
      state.options.parameter_groups.empty(),
      "update_process_group",
      where(dp_mesh),
      "parameter_groups belong to the previous replicas and cannot be updated. "
      "Wrap the model again.");
  const auto selection =
      select_parameters(*state.module, dp_mesh, state.options);
  state.dp = dp_mesh;
  state.groups = selection.groups;
  if (state.reducer) {
    state.logging = describe_construction(
        *state.module, state.reduced, dp_mesh, state.options);
    state.reducer->replace_groups(dp_mesh, selection.groups);
  }
}

void DistributedDataParallelBase::check_replicas() const {
  data_parallel::check_replicas_equal(
      *state_->module,
      state_->dp,
      state_->options.params_and_buffers_to_ignore);
}

DDPLoggingData DistributedDataParallelBase::get_ddp_logging_data() const {
  state_->require_reducer("there is nothing to say");
  return state_->get_logging_data();
}

void DistributedDataParallelBase::set_ddp_runtime_logging_sample_rate(
    int64_t every) {
  state_->require_reducer("nothing is measured").set_sample_rate(every);
}

std::string DistributedDataParallelBase::describe_unused_parameters() const {
  const auto& reducer = state_->require_reducer("nothing was used");
  return describe_unused(*state_->module, state_->reduced, reducer.last_use());
}

dtensor::StateDict DistributedDataParallelBase::state_dict(
    const std::set<std::string>& ignore) const {
  const auto joint = dtensor::joint_mesh(*state_->module, state_->dp);
  auto state = dtensor::module_state_dict(*state_->module, joint, ignore);
  // Parameters have low precision between forward and backward.
  for (const auto& item : state_->module->named_parameters()) {
    const auto full = state_->reducer
                          ? state_->reducer->full_precision(item.value())
                          : at::Tensor();
    if (full.defined() && state.contains(item.key())) {
      state[item.key()] = dtensor::on_mesh(full, joint);
    }
  }
  return state;
}

dtensor::StateDict DistributedDataParallelBase::optimizer_state_dict(
    torch::optim::Optimizer& optimizer) const {
  if (auto* zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    return zero->state_dict(*state_->module);
  }
  const auto joint = dtensor::joint_mesh(*state_->module, state_->dp);
  return dtensor::optimizer_state_dict(optimizer, *state_->module, joint);
}

void DistributedDataParallelBase::load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const dtensor::StateDict& state) const {
  if (auto* zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    zero->load_state_dict(*state_->module, state);
    return;
  }
  dtensor::load_optimizer_state_dict(optimizer, *state_->module, state);
}

} // namespace weft::ddp
