#include "ddp/ddp_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data_parallel/parameters/gradient_hooks.h"
#include "data_parallel/replicas/replicas.h"
#include "ddp/ddp_join.h"
#include "ddp/reducer/optimizer_in_backward.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using Ids = std::unordered_set<const c10::TensorImpl*>;

Ids ids_of(const std::vector<data_parallel::NamedTensor>& tensors) {
  Ids ids;
  for (const auto& item : tensors) {
    ids.insert(item.tensor.unsafeGetTensorImpl());
  }
  return ids;
}

} // namespace

std::vector<std::vector<data_parallel::NamedTensor>> values_by_group(
    const ParameterSelection& selection,
    const std::vector<data_parallel::NamedTensor>& buffers) {
  std::vector<std::vector<data_parallel::NamedTensor>> by_group(
      selection.groups.size());
  Ids in_other_group;
  for (const auto& item : selection.reduced) {
    if (item.group != 0) {
      by_group[item.group].push_back(item.state);
      in_other_group.insert(item.state.tensor.unsafeGetTensorImpl());
    }
  }
  for (const auto& item : selection.parameters) {
    if (!in_other_group.contains(item.tensor.unsafeGetTensorImpl())) {
      by_group[0].push_back(item);
    }
  }
  by_group[0].insert(by_group[0].end(), buffers.begin(), buffers.end());
  return by_group;
}

Reducer& DistributedDataParallelBase::State::require_reducer(
    const char* what) const {
  WEFT_CHECK(
      reducer != nullptr,
      "ddp",
      where(),
      what,
      " before the parameters have values. Call synchronize_parameters() after "
      "materialize().");
  return *reducer;
}

void DistributedDataParallelBase::State::sync_initial_values(
    const ParameterSelection& selection) const {
  // broadcast_buffers = false, PyTorch's older option, skips the initial
  // broadcast of buffers, too.
  const bool has_buffers = options.forward_sync_buffers.has_value() ||
                           options.broadcast_buffers.value_or(true);
  const auto buffers = has_buffers ? selection.buffers
                                   : std::vector<data_parallel::NamedTensor>();
  data_parallel::check_replicas_agree(
      selection.parameters, buffers, describe_options(options), dp);
  const auto by_group = values_by_group(selection, buffers);
  for (size_t i = 0; i < by_group.size(); ++i) {
    auto group = selection.groups[i].group;
    data_parallel::broadcast_from(0, by_group[i], group, "ddp initial values");
  }
}

void DistributedDataParallelBase::State::start(
    const ParameterSelection& selection) {
  parameters = selection.parameters;
  groups = selection.groups;
  reduced.clear();
  for (const auto& item : selection.reduced) {
    reduced.push_back(item.state);
  }
  remember_known();
  ReducerConfig config{
      .caps = caps, .options = options, .groups = groups, .cast = {}};
  if (options.mixed_precision && options.mixed_precision->param_dtype) {
    config.cast = std::make_shared<data_parallel::ParameterCast>(
        selection.cast, *options.mixed_precision->param_dtype);
  }
  logging = describe_construction(*module, reduced, dp, options);
  check_no_hooks_registered();
  reducer = Reducer::create(selection.reduced, dp, std::move(config), paused);
  reducer->set_join(joined);
  take_over_optimizers();
  log_construction(get_logging_data());
}

void DistributedDataParallelBase::State::check_no_hooks_registered() const {
  for (const auto& item : reduced) {
    WEFT_CHECK(
        data_parallel::GradientHooks::owners_of(
            item.tensor, data_parallel::HookOwner::kReducer)
            .empty(),
        "ddp",
        where(),
        item.name,
        " belongs to a module that another DistributedDataParallel wraps, and "
        "would be reduced twice. Destroy that one first, or call its "
        "remove_autograd_hooks().");
  }
}

void DistributedDataParallelBase::State::take_over_optimizers() {
  for (const auto& item : reduced) {
    if (auto found = OptimizerInBackward::of(item.tensor)) {
      // add_optimizers() ignores an optimizer that another parameter has added.
      add_optimizers(std::move(found));
    }
  }
}

void DistributedDataParallelBase::State::add_optimizers(
    std::shared_ptr<OptimizerInBackward> added) {
  for (const auto& other : optimizers) {
    // It was taken over at construction, or for another parameter.
    if (other->optimizers() == added->optimizers()) {
      return;
    }
    for (const auto& parameter : added->parameters()) {
      const auto& all = other->parameters();
      WEFT_CHECK(
          std::none_of(
              all.begin(),
              all.end(),
              [&](const auto& each) { return each.is_same(parameter); }),
          "register_fused_optim",
          where(),
          "a parameter of sizes ",
          parameter.sizes(),
          " already has an optimizer that steps in backward. Register only one "
          "per parameter.");
    }
  }
  for (const auto& item : reduced) {
    added->take_over(item.tensor);
  }
  optimizers.push_back(std::move(added));
  // The reducer owns this function and is destroyed before the parameters.
  reducer->set_after_reduction([all = optimizers, own = reduced](size_t i) {
    for (const auto& each : all) {
      each->step(own[i].tensor);
    }
  });
}

// Frozen parameters are left out, so that check_known() reports one that is
// unfrozen later.
void DistributedDataParallelBase::State::remember_known() {
  known = ids_of(reduced);
  const auto looked_after = ids_of(parameters);
  for (const auto& item : data_parallel::parameters_of(*module)) {
    const auto* id = item.tensor.unsafeGetTensorImpl();
    if (!looked_after.contains(id)) {
      known.insert(id);
    }
  }
}

void DistributedDataParallelBase::State::check_known() const {
  for (const auto& parameter : module->parameters()) {
    if (!parameter.requires_grad() ||
        known.contains(parameter.unsafeGetTensorImpl())) {
      continue;
    }
    const bool was_frozen =
        ids_of(parameters).contains(parameter.unsafeGetTensorImpl());
    std::string name;
    for (const auto& item : data_parallel::parameters_of(*module)) {
      if (item.tensor.is_same(parameter)) {
        name = item.name;
      }
    }
    WEFT_CHECK(
        false,
        "ddp",
        where(),
        name,
        was_frozen ? " was frozen when the model was wrapped and requires a "
                     "gradient now"
                   : " was added after the model was wrapped",
        ", so its gradients would not be reduced. Wrap the model again.");
  }
}

c10::Device DistributedDataParallelBase::State::device() const {
  return data_parallel::local_part(
             data_parallel::parameters_of(*module).front().tensor)
      .device();
}

bool DistributedDataParallelBase::State::is_training_forward() const {
  return module->is_training() && at::GradMode::is_enabled();
}

bool DistributedDataParallelBase::State::has_synced_buffers() const {
  return syncs_buffers_in_forward(options) &&
         !select_buffers(*module, options).empty();
}

bool DistributedDataParallelBase::State::syncs_buffers() const {
  return is_training_forward() && require_forward_param_sync && dp.size() > 1 &&
         syncs_buffers_in_forward(options);
}

void DistributedDataParallelBase::State::sync_buffers_at(
    BufferCommHookLocation location) const {
  if (location == buffer_hook_location && syncs_buffers()) {
    sync_buffers(joined ? joined->before_buffers(location) : 0);
  }
}

void DistributedDataParallelBase::State::sync_buffers(int64_t root) const {
  // Modules may replace their buffers at any time.
  const auto buffers = select_buffers(*module, options);
  if (buffers.empty()) {
    return;
  }
  if (buffer_hook) {
    const at::NoGradGuard no_grad;
    buffer_hook(buffers);
  } else {
    auto group = dp.group(int64_t{0});
    data_parallel::broadcast_from(root, buffers, group, "ddp buffers");
  }
}

void DistributedDataParallelBase::State::end_forward() {
  sync_buffers_at(BufferCommHookLocation::POST_FORWARD);
  if (is_training_forward()) {
    require_forward_param_sync = *paused == 0;
  }
}

void DistributedDataParallelBase::State::cast_buffers() const {
  if (!options.mixed_precision || !options.mixed_precision->buffer_dtype) {
    return;
  }
  for (auto& item : select_buffers(*module, options)) {
    if (at::isFloatingType(item.tensor.scalar_type())) {
      item.tensor.set_data(data_parallel::in_dtype(
          item.tensor, *options.mixed_precision->buffer_dtype));
    }
  }
}

void DistributedDataParallelBase::State::check_hook(
    const data_parallel::CommHook& hook) const {
  WEFT_CHECK(
      reducer->comm_hook() == nullptr,
      "register_comm_hook",
      where(),
      "a hook is already registered: ",
      reducer->comm_hook()->name(),
      ". Register a single hook; it may wrap others.");
  WEFT_CHECK(
      options.bucket_mode != BucketMode::kCoalesced,
      "register_comm_hook",
      where(),
      "bucket_mode kCoalesced has no buffer that ",
      hook.name(),
      " could reduce. Leave bucket_mode out.");
  WEFT_CHECK(
      !hook.divides() || options.reduce_op == mesh::ReduceOp::kAvg,
      "register_comm_hook",
      where(),
      hook.name(),
      " divides by the number of replicas, but reduce_op = kSum expects a loss "
      "that is already divided, so gradients would be divided twice. Use "
      "reduce_op = kAvg, or a hook that does not divide.");
  for (const auto& group : groups) {
    WEFT_CHECK(
        !hook.divides() || options.reduce_op != mesh::ReduceOp::kAvg ||
            group.divisor == static_cast<double>(group.group.size()),
        "register_comm_hook",
        where(),
        hook.name(),
        " divides by the size of the group, ",
        group.group.size(),
        ", but parameter_groups asks to divide by ",
        group.divisor,
        ". Use a hook that does not divide.");
  }
}

void DistributedDataParallelBase::State::adopt_buckets(
    const std::string& names) const {
  const auto parsed = base::try_parse_json(names);
  std::vector<std::vector<std::string>> layout;
  try {
    layout = parsed.get<std::vector<std::vector<std::string>>>();
  } catch (const nlohmann::json::exception&) {
    WEFT_CHECK(
        false,
        "load_comm_hook_state_dict",
        where(),
        "the buckets in the hook's state are not lists of parameter names. "
        "Load the result of comm_hook_state_dict().");
  }
  if (!reducer->has_buckets()) {
    reducer->set_bucket_layout(layout);
    return;
  }
  const auto made = reducer->bucket_names();
  WEFT_CHECK(
      made == layout,
      "load_comm_hook_state_dict",
      where(),
      "the hook's state is for ",
      layout.size(),
      " buckets, but a backward has already built ",
      made.size(),
      " different buckets here. Load the state before the first backward, "
      "which then builds the buckets of the state.");
}

DDPLoggingData DistributedDataParallelBase::State::get_logging_data() const {
  auto data = logging;
  const auto names = reducer->bucket_names();
  data.bucket_sizes = reducer->bucket_sizes();
  data.has_rebuilt_buckets = reducer->has_buckets();
  if (data.has_rebuilt_buckets) {
    data.rebuilt_bucket_sizes = data.bucket_sizes;
    data.rebuilt_per_bucket_param_indices = bucket_indices(names, reduced);
  }
  if (const auto& hook = reducer->comm_hook()) {
    data.comm_hook = hook->name();
  }
  reducer->write_statistics(data);
  return data;
}

} // namespace weft::ddp
