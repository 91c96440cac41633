#include "fsdp/fully_shard.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/parameters/row_placement.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_info.h"
#include "fsdp/schedule.h"
#include "fsdp/unit_declaration.h"
#include "mesh/error/error.h"

namespace weft::fsdp {
namespace {

constexpr const char* kChild = "_weft_fully_shard";
constexpr const char* kOp = "fully_shard";

mesh::ErrorContext where(const mesh::DeviceMesh& dp) {
  return {dp.describe_rank()};
}

std::string name_in_unit(
    const std::string& parameter,
    const torch::nn::Module& module) {
  return fmt::format(
      "\"{}\" of a {}", parameter, dtensor::module_type_name(module));
}

/// Throws unless `parameter` of `module` can be sharded over the mesh dim
/// `dim`, too. Another unit or parallelize_module() may already use the dim.
void check_mesh_dim_is_free(
    const data_parallel::NamedTensor& parameter,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const std::string& dim) {
  const auto& [name, tensor] = parameter;
  const auto& own = dtensor::spec_of(tensor);
  const bool is_free = !own.mesh().has_mesh_dim(dim);
  const auto& unit = dtensor::parameter_info(tensor).fsdp_unit;
  const auto own_name = name_in_unit(name, module);
  WEFT_CHECK(
      is_free || unit.empty(),
      kOp,
      where(dp),
      own_name,
      " is already in another unit, as ",
      unit == own_name ? "that of another such module" : unit,
      ". Call fully_shard() for inner modules first. If the weight is tied, "
      "make one unit of the modules that share it: fully_shard({&first, "
      "&second}, mesh).");
  WEFT_CHECK(
      is_free,
      kOp,
      where(dp),
      "\"",
      name,
      "\" is ",
      own.to_string(),
      " already. Parallelize the model over other mesh dims than \"",
      dim,
      "\".");
}

ShardedPlacement placement_of(
    const data_parallel::NamedTensor& parameter,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp) {
  const auto& [name, tensor] = parameter;
  const auto* impl = dtensor::dtensor_impl(tensor);
  WEFT_CHECK(
      impl != nullptr,
      kOp,
      where(dp),
      "\"",
      name,
      "\" is a plain tensor, which cannot be sharded in place. Build the "
      "module inside weft::dtensor::DeferredInit.");
  WEFT_CHECK(
      impl->deferred != nullptr,
      kOp,
      where(dp),
      "\"",
      name,
      "\" already has values, but fully_shard() requires a deferred parameter. "
      "Call fully_shard() before weft::dtensor::materialize().");
  const auto& own = impl->spec();
  const auto shards = shard_mesh(dp);
  const auto root = dp.root();
  const auto& dp_names = dp.mesh_dim_names();
  std::set<std::string> names(dp_names.begin(), dp_names.end());
  if (own.mesh_ndim() > 0) {
    WEFT_CHECK(
        own.mesh().root() == root,
        kOp,
        where(dp),
        "\"",
        name,
        "\" is ",
        own.to_string(),
        ", whose root mesh differs from that of ",
        dp.to_string(),
        ". Slice both from one mesh of DeviceMesh::create().");
    for (const auto& dim : dp_names) {
      check_mesh_dim_is_free(parameter, module, dp, dim);
    }
    names.insert(
        own.mesh().mesh_dim_names().begin(), own.mesh().mesh_dim_names().end());
  }
  const auto rows = data_parallel::row_placement(tensor, shards);
  std::vector<std::string> dims;
  dtensor::Placements placements;
  for (const auto& each : root.mesh_dim_names()) {
    if (!names.contains(each)) {
      continue;
    }
    dims.push_back(each);
    if (each == shards.mesh_dim_names().front()) {
      placements.push_back(tensor.dim() == 0 ? dtensor::Replicate() : rows);
    } else if (own.mesh().has_mesh_dim(each)) {
      placements.push_back(own.placement(own.mesh().mesh_dim(each)));
    } else {
      placements.push_back(dtensor::Replicate());
    }
  }
  const dtensor::DTensorSpec sharded(root.slice(dims), placements);
  const auto replicate_dim = sharded.mesh().mesh_dim(dp_names.front());
  return {
      .unsharded = own,
      .sharded = sharded,
      .unreduced = dp.ndim() == 2 && dp.size(int64_t{0}) > 1
                       ? sharded.with(replicate_dim, dtensor::Partial())
                       : sharded};
}

void check_mixed_precision(
    const MixedPrecisionPolicy& policy,
    const mesh::DeviceMesh& dp) {
  const auto check = [&](const char* field,
                         const std::optional<c10::ScalarType>& dtype) {
    WEFT_CHECK(
        !dtype || at::isFloatingType(*dtype),
        kOp,
        where(dp),
        "mixed_precision.",
        field,
        " is ",
        dtype.value_or(at::kFloat),
        ", expected a floating point dtype.");
  };
  check("param_dtype", policy.param_dtype);
  check("reduce_dtype", policy.reduce_dtype);
  check("output_dtype", policy.output_dtype);
}

void check_reshard_to(
    const FullyShardOptions& options,
    const mesh::DeviceMesh& dp) {
  const auto ranks = shard_mesh(dp).size();
  const auto size = options.reshard_to;
  if (size == 0) {
    return;
  }
  WEFT_CHECK(
      size > 1 && size < ranks && ranks % size == 0,
      kOp,
      where(dp),
      "reshard_to is ",
      size,
      ", expected a divisor of the ",
      ranks,
      " ranks that shard, other than 1 and ",
      ranks,
      ". Set reshard_after_forward to false to keep all of the parameters.");
  WEFT_CHECK(
      options.reshard_after_forward.value_or(true),
      kOp,
      where(dp),
      "reshard_to is ",
      size,
      ", but reshard_after_forward is false, so nothing is resharded. Set only "
      "one of them.");
  const auto dim = shard_mesh(dp).mesh_dim_names().front();
  WEFT_CHECK(
      dp.root().has_mesh_dim(dim),
      kOp,
      where(dp),
      "reshard_to requires a dim of a mesh from DeviceMesh::create(), but \"",
      dim,
      "\" was flattened. Create the mesh with that dim.");
}

using Declared = std::vector<std::shared_ptr<UnitDeclaration>>;

void find_inner_units(const torch::nn::Module& module, Declared& found) {
  if (auto own = find_declaration(module)) {
    found.push_back(std::move(own));
  }
  for (const auto& child : module.children()) {
    find_inner_units(*child, found);
  }
}

bool has_parameter(const UnitDeclaration& unit, const at::Tensor& tensor) {
  return std::ranges::any_of(unit.parameters, [&](const auto& each) {
    return each.tensor.is_same(tensor);
  });
}

} // namespace

mesh::DeviceMesh shard_mesh(const mesh::DeviceMesh& dp) {
  return dp[dp.mesh_dim_names().back()];
}

std::shared_ptr<UnitDeclaration> find_declaration(
    const torch::nn::Module& module) {
  const auto children = module.named_children();
  const auto* child = children.find(kChild);
  return child ? std::static_pointer_cast<UnitDeclaration>(*child) : nullptr;
}

bool is_fully_sharded(const torch::nn::Module& module) {
  return find_declaration(module) != nullptr;
}

void fully_shard(
    const std::vector<torch::nn::Module*>& modules,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options) {
  WEFT_CHECK(
      dp.ndim() == 1 || dp.ndim() == 2,
      kOp,
      where(dp),
      "the mesh has ",
      dp.ndim(),
      " dims, expected 1 or 2. Pass a slice such as mesh[\"dp_shard\"], or, "
      "for replicas of the shards, mesh.slice({\"dp\", \"dp_shard\"}).");
  WEFT_CHECK(
      options.reduce_op == mesh::ReduceOp::kAvg ||
          options.reduce_op == mesh::ReduceOp::kSum,
      kOp,
      where(dp),
      "reduce_op must be kAvg or kSum.");
  check_mixed_precision(options.mixed_precision, dp);
  check_reshard_to(options, dp);
  auto unit = std::make_shared<UnitDeclaration>();
  unit->dp = dp;
  unit->options = options;
  Declared inner;
  for (auto* module : modules) {
    WEFT_CHECK(
        find_declaration(*module) == nullptr,
        kOp,
        where(dp),
        "a ",
        dtensor::module_type_name(*module),
        " is already a unit. Call fully_shard() once per module, inner modules "
        "first.");
    find_inner_units(*module, inner);
  }
  size_t others = 0;
  for (auto* module : modules) {
    for (const auto& item : data_parallel::parameters_of(*module)) {
      const bool is_inner = std::ranges::any_of(inner, [&](const auto& each) {
        return has_parameter(*each, item.tensor);
      });
      others += is_inner ? 1 : 0;
      if (is_inner || has_parameter(*unit, item.tensor)) {
        continue;
      }
      unit->parameters.push_back(
          {.tensor = item.tensor,
           .placement = placement_of(item, *module, dp)});
      dtensor::parameter_info(item.tensor).fsdp_unit =
          name_in_unit(item.name, *module);
    }
  }
  WEFT_CHECK(
      !unit->parameters.empty(),
      kOp,
      where(dp),
      "a ",
      dtensor::module_type_name(*modules.front()),
      others > 0
          ? " has no parameters besides those of the units inside it. Do not "
            "call fully_shard() on it."
          : " has no parameters to shard. Do not call fully_shard() on it.");
  for (const auto& [tensor, placement] : unit->parameters) {
    auto* impl = dtensor::dtensor_impl(tensor);
    impl->reset_local(impl->local(), placement.sharded);
  }
  const auto declared = unit;
  for (auto* module : modules) {
    module->register_module(kChild, declared);
    auto& hooks = dtensor::module_hooks(*module);
    const std::weak_ptr<UnitDeclaration> weak = declared;
    hooks.before.emplace_back([weak](std::vector<at::Tensor>& inputs) {
      const auto self = weak.lock();
      if (const auto schedule = self ? self->schedule.lock() : nullptr) {
        schedule->begin_call(*self->unit, inputs);
      }
    });
    hooks.after.emplace_back([weak](std::vector<at::Tensor>& outputs) {
      const auto self = weak.lock();
      if (const auto schedule = self ? self->schedule.lock() : nullptr) {
        schedule->end_call(*self->unit, outputs);
      }
    });
  }
}

void fully_shard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const FullyShardOptions& options) {
  fully_shard(std::vector<torch::nn::Module*>{&module}, dp, options);
}

} // namespace weft::fsdp
