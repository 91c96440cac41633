#include "fsdp/fully_sharded_data_parallel.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/memory_allocator.h"
#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "fsdp/fsdp_join.h"
#include "fsdp/schedule.h"
#include "fsdp/unit_declaration.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::fsdp {
namespace {

constexpr const char* kOutermost = "the model";

mesh::ErrorContext context(const mesh::DeviceMesh& dp) {
  return {dp.describe_rank()};
}

// Returns the group of `size` adjacent ranks of the sharding mesh dim. It is a
// dim of a copy of the root mesh in which that dim is split in two. Collective:
// all ranks of the root mesh.
mesh::Communicator adjacent_group(const mesh::DeviceMesh& dp, int64_t size) {
  const auto root = dp.root();
  const auto dim = root.mesh_dim(shard_mesh(dp).mesh_dim_names().front());
  auto shape = root.shape();
  auto names = root.mesh_dim_names();
  shape[dim] /= size;
  shape.insert(shape.begin() + dim + 1, size);
  names.insert(names.begin() + dim + 1, names[dim] + "_reshard_to");
  return mesh::DeviceMesh::create(dp.world(), shape, names).group(dim + 1);
}

struct NamedDeclaration {
  std::string name;
  std::shared_ptr<UnitDeclaration> unit;
};

/// Appends the units to `found` in the order in which modules are registered.
void find_units(
    const torch::nn::Module& module,
    const std::string& name,
    std::vector<NamedDeclaration>& found) {
  if (auto unit = find_declaration(module)) {
    const bool is_new = std::ranges::none_of(
        found, [&](const auto& each) { return each.unit == unit; });
    if (is_new) {
      found.push_back({name.empty() ? kOutermost : name, std::move(unit)});
    }
  }
  for (const auto& child : module.named_children()) {
    find_units(
        *child.value(),
        name.empty() ? child.key() : name + "." + child.key(),
        found);
  }
}

bool lacks_a_unit(const torch::nn::Module& module) {
  std::vector<NamedDeclaration> units;
  find_units(module, "", units);
  return std::ranges::any_of(
      data_parallel::parameters_of(module), [&](const auto& item) {
        return std::ranges::none_of(units, [&](const auto& each) {
          return std::ranges::any_of(
              each.unit->parameters, [&](const auto& parameter) {
                return parameter.tensor.is_same(item.tensor);
              });
        });
      });
}

} // namespace

struct FullyShardedDataParallelBase::State {
  std::shared_ptr<torch::nn::Module> module;
  mesh::DeviceMesh dp;
  FullyShardOptions unit_options;
  ScheduleOptions options;
  std::shared_ptr<std::atomic<int>> paused =
      std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> without_all_reduce =
      std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<Schedule> schedule;
  std::shared_ptr<FsdpJoin> joined;
  std::shared_ptr<data_parallel::CommHook> comm_hook;

  std::map<const void*, std::string> parameter_names() const;
  void check_units(const std::vector<NamedDeclaration>& units) const;
  std::shared_ptr<Schedule> make_schedule();
  UnitDeclaration& unit_of(const torch::nn::Module& unit);
  std::vector<Unit*> units_of(const std::vector<torch::nn::Module*>& modules);
};

std::map<const void*, std::string>
FullyShardedDataParallelBase::State::parameter_names() const {
  std::map<const void*, std::string> names;
  for (const auto& item : data_parallel::parameters_of(*module)) {
    names.emplace(item.tensor.unsafeGetTensorImpl(), item.name);
  }
  return names;
}

// Checks, before anything is gathered, that the units are valid and that all
// ranks have the same.
void FullyShardedDataParallelBase::State::check_units(
    const std::vector<NamedDeclaration>& units) const {
  const auto names = parameter_names();
  std::vector<std::string> lines;
  for (const auto& [name, unit] : units) {
    WEFT_CHECK(
        unit->dp == dp,
        "fsdp",
        context(dp),
        "unit ",
        name,
        " was made on ",
        unit->dp.to_string(),
        ", but FullyShardedDataParallel was given the mesh ",
        dp.to_string(),
        ". Pass the same one.");
    WEFT_CHECK(
        unit->schedule.expired(),
        "fsdp",
        context(dp),
        "unit ",
        name,
        " belongs to another existing FullyShardedDataParallel. A model can "
        "have only one.");
    const auto& policy = unit->options.mixed_precision;
    const auto dtype_name = [](const std::optional<c10::ScalarType>& dtype) {
      return dtype ? c10::toString(*dtype) : "unset";
    };
    lines.push_back(fmt::format(
        "unit {}, param_dtype {}, reduce_dtype {}, output_dtype {}, "
        "cast_forward_inputs {}, reshard_after_forward {}, reshard_to {}, "
        "reduce_op {}",
        name,
        dtype_name(policy.param_dtype),
        dtype_name(policy.reduce_dtype),
        dtype_name(policy.output_dtype),
        policy.cast_forward_inputs,
        unit->options.reshard_after_forward
            ? (*unit->options.reshard_after_forward ? "true" : "false")
            : "unset",
        unit->options.reshard_to,
        unit->options.reduce_op == mesh::ReduceOp::kAvg ? "kAvg" : "kSum"));
    for (const auto& [tensor, placement] : unit->parameters) {
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      WEFT_CHECK(
          found != names.end(),
          "fsdp",
          context(dp),
          "unit ",
          name,
          " has a parameter of sizes ",
          tensor.sizes(),
          " that the module no longer has. Change the module only before "
          "fully_shard().");
      WEFT_CHECK(
          !dtensor::is_deferred(tensor),
          "fsdp",
          context(dp),
          found->second,
          " has no values yet. Call weft::dtensor::materialize(model, seed) "
          "before the first forward.");
      const auto& spec = dtensor::spec_of(tensor);
      WEFT_CHECK(
          spec == placement.sharded,
          "fsdp",
          context(dp),
          found->second,
          " is ",
          spec.to_string(),
          ", but fully_shard() placed it as ",
          placement.sharded.to_string(),
          ". Do not change placements after fully_shard().");
      lines.push_back(fmt::format(
          "{} {} of {}, trained: {}",
          found->second,
          c10::str(tensor.sizes()),
          c10::toString(tensor.scalar_type()),
          tensor.requires_grad()));
    }
  }
  for (int64_t dim = 0; dim < dp.ndim(); ++dim) {
    auto group = dp.group(dim);
    mesh::check_lines_match(
        group,
        lines,
        {.op = "fsdp",
         .what = "the list of units",
         .hint =
             "All ranks build the same model and make the same units of it.",
         .where = dp.describe_rank()});
  }
}

std::shared_ptr<Schedule> FullyShardedDataParallelBase::State::make_schedule() {
  std::vector<NamedDeclaration> declared;
  find_units(*module, "", declared);
  check_units(declared);
  const auto names = parameter_names();
  const auto outermost = find_declaration(*module);
  const auto shards = shard_mesh(dp);
  std::optional<mesh::Communicator> replicas;
  if (dp.ndim() == 2) {
    replicas = dp.group(int64_t{0});
  }
  std::vector<std::unique_ptr<Unit>> units;
  const Unit* root = nullptr;
  std::map<int64_t, mesh::Communicator> adjacent;
  for (const auto& [name, unit] : declared) {
    std::vector<ShardedParameter> parameters;
    const auto& param_dtype = unit->options.mixed_precision.param_dtype;
    for (const auto& [tensor, placement] : unit->parameters) {
      parameters.emplace_back(
          names.at(tensor.unsafeGetTensorImpl()),
          tensor,
          placement,
          cast_dtype(tensor.scalar_type(), param_dtype),
          shards.size(),
          shards.coordinate(int64_t{0}));
    }
    units.push_back(std::make_unique<Unit>(
        name,
        std::move(parameters),
        unit->options,
        unit->options.reshard_after_forward.value_or(unit != outermost),
        shards.group(int64_t{0}),
        replicas));
    unit->unit = units.back().get();
    if (const auto size = unit->options.reshard_to;
        size > 0 && unit->unit->reshards_after_forward()) {
      auto group = adjacent.find(size);
      if (group == adjacent.end()) {
        group = adjacent.emplace(size, adjacent_group(dp, size)).first;
      }
      unit->unit->set_reshard_group(group->second);
    }
    if (unit == outermost) {
      root = unit->unit;
    }
  }
  auto made = std::make_shared<Schedule>(
      std::move(units), root, options, paused, without_all_reduce);
  made->start();
  for (const auto& [name, unit] : declared) {
    unit->schedule = made;
  }
  return made;
}

UnitDeclaration& FullyShardedDataParallelBase::State::unit_of(
    const torch::nn::Module& unit) {
  const auto declared = find_declaration(unit);
  WEFT_CHECK(
      declared && schedule && declared->schedule.lock() == schedule,
      "fsdp",
      context(dp),
      "a ",
      dtensor::module_type_name(unit),
      " is not a unit of this model. Pass a module that fully_shard() was "
      "called with.");
  return *declared;
}

std::vector<Unit*> FullyShardedDataParallelBase::State::units_of(
    const std::vector<torch::nn::Module*>& modules) {
  std::vector<Unit*> units;
  for (const auto* module : modules) {
    units.push_back(unit_of(*module).unit);
  }
  return units;
}

FullyShardedDataParallelBase::FullyShardedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options,
    const ScheduleOptions& schedule) {
  WEFT_CHECK(
      module != nullptr, "fsdp", context(dp), "the module is null. Pass one.");
  WEFT_CHECK(
      schedule.forward_prefetch >= 0 && schedule.reduce_in_flight >= 0,
      "fsdp",
      context(dp),
      "forward_prefetch and reduce_in_flight must be at least 0, got ",
      schedule.forward_prefetch,
      " and ",
      schedule.reduce_in_flight,
      ".");
  if (lacks_a_unit(*module)) {
    fully_shard(*module, dp, options);
  }
  state_ = std::make_unique<State>();
  state_->module = std::move(module);
  state_->dp = dp;
  state_->unit_options = options;
  state_->options = schedule;
}

// The module remains usable after the wrapper is destroyed, so its units are
// resharded.
FullyShardedDataParallelBase::~FullyShardedDataParallelBase() {
  if (state_ && state_->schedule) {
    state_->schedule->abandon();
  }
}

NoSyncGuard FullyShardedDataParallelBase::no_sync() {
  return NoSyncGuard(state_->paused);
}

NoSyncGuard FullyShardedDataParallelBase::no_all_reduce() {
  return NoSyncGuard(state_->without_all_reduce);
}

void FullyShardedDataParallelBase::synchronize_parameters() {
  if (!state_->schedule) {
    // The first forward may run in InferenceMode, which the units outlive.
    const c10::InferenceMode normal(/*enabled=*/false);
    state_->schedule = state_->make_schedule();
    // The memory that parameters had before they moved into the messages of
    // their units is as large as their present memory. The allocator keeps it
    // as free blocks.
    base::release_freed_memory();
  }
}

const mesh::DeviceMesh& FullyShardedDataParallelBase::mesh() const {
  return state_->dp;
}

std::vector<UnitInfo> FullyShardedDataParallelBase::units() const {
  std::vector<UnitInfo> result;
  if (!state_->schedule) {
    return result;
  }
  for (const auto& unit : state_->schedule->units()) {
    UnitInfo info{
        .name = unit->name(),
        .parameters = {},
        .unsharded_bytes = unit->unsharded_bytes(),
        .is_unsharded = unit->is_unsharded()};
    for (const auto& parameter : unit->parameters()) {
      info.parameters.push_back(parameter.name());
    }
    result.push_back(std::move(info));
  }
  return result;
}

int64_t FullyShardedDataParallelBase::peak_unsharded_bytes() const {
  return state_->schedule
             ? state_->schedule->memory().unsharded.peak_bytes_in_use()
             : 0;
}

int64_t FullyShardedDataParallelBase::peak_message_bytes() const {
  return state_->schedule
             ? state_->schedule->memory().messages.peak_bytes_in_use()
             : 0;
}

int64_t FullyShardedDataParallelBase::held_bytes() const {
  if (!state_->schedule) {
    return 0;
  }
  const auto& [unsharded, messages] = state_->schedule->memory();
  return unsharded.bytes_in_use() + unsharded.bytes_kept() +
         messages.bytes_in_use() + messages.bytes_kept();
}

void FullyShardedDataParallelBase::unshard(const torch::nn::Module& module) {
  synchronize_parameters();
  state_->schedule->unshard(*state_->unit_of(module).unit);
}

void FullyShardedDataParallelBase::reshard(const torch::nn::Module& module) {
  synchronize_parameters();
  state_->schedule->reshard(*state_->unit_of(module).unit);
}

std::optional<c10::ScalarType> FullyShardedDataParallelBase::input_dtype()
    const {
  const auto declared = find_declaration(*state_->module);
  const auto& policy =
      (declared ? declared->options : state_->unit_options).mixed_precision;
  const bool is_whole = state_->schedule && state_->schedule->is_whole();
  return policy.cast_forward_inputs && !is_whole ? policy.param_dtype
                                                 : std::nullopt;
}

void FullyShardedDataParallelBase::begin_forward() {
  synchronize_parameters();
  if (state_->joined && !state_->schedule->is_active()) {
    state_->joined->begin_forward();
  }
  state_->schedule->begin_forward();
}

void FullyShardedDataParallelBase::end_forward(
    const std::vector<at::Tensor>& outputs) {
  state_->schedule->end_forward(outputs);
  if (state_->joined && !state_->schedule->is_active()) {
    state_->joined->end_forward();
  }
}

void FullyShardedDataParallelBase::abandon_forward() {
  if (state_->schedule) {
    state_->schedule->abandon_forward();
  }
}

std::shared_ptr<data_parallel::JoinHook>
FullyShardedDataParallelBase::join_hook(
    const data_parallel::JoinKwargs& kwargs) {
  auto* join = running_join();
  WEFT_CHECK(
      join != nullptr,
      "join_hook",
      context(state_->dp),
      "no Join is running. Pass the wrapped model to Join and call run().");
  // Ranks without any inputs never call forward, so all ranks make the schedule
  // here. A unit that is still unsharded after an earlier forward would not be
  // gathered again, and would stay unsharded on ranks without inputs.
  synchronize_parameters();
  state_->schedule->reshard_all();
  state_->joined = std::make_shared<FsdpJoin>(
      *this, *join, *state_->schedule, join_process_group(), kwargs);
  return state_->joined;
}

void FullyShardedDataParallelBase::leave_join() {
  state_->joined.reset();
}

void FullyShardedDataParallelBase::abort_join() {
  for (int64_t dim = 0; dim < state_->dp.ndim(); ++dim) {
    state_->dp.group(dim).abort();
  }
}

c10::Device FullyShardedDataParallelBase::join_device() const {
  return state_->dp.world().device();
}

mesh::Communicator FullyShardedDataParallelBase::join_process_group() const {
  return state_->dp.flatten().group(int64_t{0});
}

mesh::DeviceMesh FullyShardedDataParallelBase::join_model_parallel_mesh()
    const {
  return data_parallel::mesh_of_other_dims(
      dtensor::joint_mesh(*state_->module, state_->dp), state_->dp);
}

bool FullyShardedDataParallelBase::is_in_join_iteration() const {
  return state_->joined && state_->joined->is_in_iteration();
}

bool FullyShardedDataParallelBase::has_reduced_in_join() const {
  return state_->joined && state_->joined->has_reduced();
}

void FullyShardedDataParallelBase::set_join_has_optimizer() {
  if (state_->joined) {
    state_->joined->set_has_optimizer();
  }
}

ForwardScope::ForwardScope(FullyShardedDataParallelBase& model)
    : model_(model), exceptions_(std::uncaught_exceptions()) {
  model_.begin_forward();
}

ForwardScope::~ForwardScope() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    model_.abandon_forward();
  } else {
    model_.end_forward({});
  }
}

FullParameters::FullParameters(
    FullyShardedDataParallelBase& model,
    bool write_back)
    : model_(model),
      write_back_(write_back),
      exceptions_(std::uncaught_exceptions()) {
  model_.synchronize_parameters();
  model_.state_->schedule->begin_whole();
}

FullParameters::~FullParameters() noexcept(false) {
  try {
    model_.state_->schedule->end_whole(write_back_);
  } catch (...) {
    if (std::uncaught_exceptions() == exceptions_) {
      throw;
    }
  }
}

void FullyShardedDataParallelBase::set_modules_to_forward_prefetch(
    const torch::nn::Module& module,
    const std::vector<torch::nn::Module*>& next) {
  synchronize_parameters();
  state_->schedule->set_forward_prefetch(
      *state_->unit_of(module).unit, state_->units_of(next));
}

void FullyShardedDataParallelBase::set_modules_to_backward_prefetch(
    const torch::nn::Module& module,
    const std::vector<torch::nn::Module*>& next) {
  synchronize_parameters();
  state_->schedule->set_backward_prefetch(
      *state_->unit_of(module).unit, state_->units_of(next));
}

void FullyShardedDataParallelBase::register_comm_hook(
    std::shared_ptr<data_parallel::CommHook> hook) {
  const auto& dp = state_->dp;
  WEFT_CHECK(
      hook != nullptr, "register_comm_hook", context(dp), "the hook is null.");
  WEFT_CHECK(
      dp.ndim() == 2,
      "register_comm_hook",
      context(dp),
      hook->name(),
      " reduces gradients over replicas, but the mesh ",
      dp.to_string(),
      " only shards. Pass a mesh of two dims, whose first one replicates.");
  WEFT_CHECK(
      hook->can_be_tried(),
      "register_comm_hook",
      context(dp),
      hook->name(),
      " keeps state for each bucket or does not reduce, and only hooks without "
      "state are supported with sharded gradients. Use bf16_compress_hook() or "
      "fp16_compress_hook().");
  synchronize_parameters();
  WEFT_CHECK(
      state_->comm_hook == nullptr,
      "register_comm_hook",
      context(dp),
      "a hook is already registered: ",
      state_->comm_hook->name(),
      ". Register a single hook; it may wrap others.");
  const auto& first = state_->schedule->units().front()->parameters().front();
  data_parallel::check_declaration(
      *hook, dp.group(int64_t{0}), first.shard().device());
  state_->comm_hook = hook;
  state_->schedule->set_comm_hook(hook);
}

dtensor::StateDict FullyShardedDataParallelBase::state_dict(
    const std::set<std::string>& ignore) const {
  if (state_->schedule) {
    state_->schedule->reshard_all();
  }
  return dtensor::module_state_dict(
      *state_->module,
      dtensor::joint_mesh(*state_->module, state_->dp),
      ignore);
}

dtensor::StateDict FullyShardedDataParallelBase::optimizer_state_dict(
    torch::optim::Optimizer& optimizer) const {
  if (state_->schedule) {
    state_->schedule->reshard_all();
  }
  return dtensor::optimizer_state_dict(
      optimizer,
      *state_->module,
      dtensor::joint_mesh(*state_->module, state_->dp));
}

void FullyShardedDataParallelBase::load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const dtensor::StateDict& state) const {
  if (state_->schedule) {
    state_->schedule->reshard_all();
  }
  dtensor::load_optimizer_state_dict(optimizer, *state_->module, state);
}

} // namespace weft::fsdp
