#include "ddp/parameter_selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/parameter_owners.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

mesh::ErrorContext context_of(const mesh::DeviceMesh& dp) {
  return {dp.describe_rank()};
}

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& each) {
    return matches_name(each, name);
  });
}

bool is_ignored(
    const DistributedDataParallelOptions& options,
    const std::string& name) {
  const auto& ignored = options.params_and_buffers_to_ignore;
  return std::any_of(ignored.begin(), ignored.end(), [&](const auto& each) {
    return matches_name(each, name);
  });
}

std::vector<data_parallel::NamedTensor> without_ignored(
    std::vector<data_parallel::NamedTensor> all,
    const DistributedDataParallelOptions& options) {
  std::erase_if(
      all, [&](const auto& item) { return is_ignored(options, item.name); });
  return all;
}

void check_ignored_exist(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  auto all = data_parallel::parameters_of(module);
  const auto buffers = data_parallel::buffers_of(module);
  all.insert(all.end(), buffers.begin(), buffers.end());
  for (const auto& pattern : options.params_and_buffers_to_ignore) {
    WEFT_CHECK(
        std::any_of(
            all.begin(),
            all.end(),
            [&](const auto& item) { return matches_name(pattern, item.name); }),
        "ddp",
        context_of(dp),
        "params_and_buffers_to_ignore names \"",
        pattern,
        "\", which is not a parameter or buffer of the module. Give fully "
        "qualified names, e.g. \"",
        all.empty() ? "" : all.front().name,
        "\".");
  }
}

void check_mesh(
    const data_parallel::NamedTensor& item,
    const mesh::DeviceMesh& dp,
    const mesh::Communicator& group) {
  const auto* impl = dtensor::dtensor_impl(item.tensor);
  if (!impl || impl->spec().mesh_ndim() == 0) {
    return;
  }
  const auto& replicas = group.ranks();
  for (const auto rank : impl->spec().mesh().ranks()) {
    WEFT_CHECK(
        rank == dp.rank() ||
            std::find(replicas.begin(), replicas.end(), rank) == replicas.end(),
        "ddp",
        context_of(dp),
        item.name,
        " is ",
        dtensor::describe(item.tensor),
        ", whose mesh shares ranks with the replicas' mesh ",
        dp.to_string(),
        ". Parallelize the model over mesh dims other than the replicas'.");
  }
}

double divisor_of(
    const DistributedDataParallelOptions& options,
    const mesh::DeviceMesh& mesh,
    const std::optional<double>& divide_by) {
  return options.reduce_op == mesh::ReduceOp::kAvg
             ? divide_by.value_or(static_cast<double>(mesh.size()))
             : 1.0;
}

std::vector<ReductionGroup> groups_of(
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  std::vector<ReductionGroup> groups{
      {.group = dp.group(int64_t{0}),
       .divisor = divisor_of(options, dp, std::nullopt)}};
  for (const auto& item : options.parameter_groups) {
    WEFT_CHECK(
        item.mesh.ndim() == 1,
        "ddp",
        context_of(dp),
        "mesh of a parameter group: got ",
        item.mesh.ndim(),
        " mesh dims, expected 1. Pass a slice, e.g. mesh[\"dp\"], or "
        "DeviceMesh::from_group().");
    for (const auto rank : item.mesh.ranks()) {
      const auto& ranks = dp.ranks();
      WEFT_CHECK(
          std::find(ranks.begin(), ranks.end(), rank) != ranks.end(),
          "ddp",
          context_of(dp),
          "parameter_groups: rank ",
          rank,
          " of ",
          item.mesh.to_string(),
          " is not among the replicas ",
          dp.to_string(),
          ". A parameter group must contain only ranks of the replicas' mesh.");
    }
    WEFT_CHECK(
        !item.divide_by || *item.divide_by > 0.0,
        "ddp",
        context_of(dp),
        "parameter_groups: got divide_by = ",
        item.divide_by.value_or(0.0),
        ", expected more than 0. Leave divide_by out to get the mean over the "
        "group.");
    groups.push_back(
        {.group = item.mesh.group(int64_t{0}),
         .divisor = divisor_of(options, item.mesh, item.divide_by)});
  }
  return groups;
}

/// Returns the index in groups_of() of a parameter's group.
size_t group_of(
    const DistributedDataParallelOptions& options,
    const std::string& name) {
  for (size_t i = 0; i < options.parameter_groups.size(); ++i) {
    if (matches_any(options.parameter_groups[i].parameters, name)) {
      return i + 1;
    }
  }
  return 0;
}

void check_groups_are_used(
    const ParameterSelection& selection,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  for (const auto& group : options.parameter_groups) {
    for (const auto& pattern : group.parameters) {
      const auto& all = selection.parameters;
      WEFT_CHECK(
          std::any_of(
              all.begin(),
              all.end(),
              [&](const auto& item) {
                return matches_name(pattern, item.name);
              }),
          "ddp",
          context_of(dp),
          "parameter_groups: no parameter matches \"",
          pattern,
          "\". Give fully qualified names or patterns, e.g. "
          "\"layers.*.experts.*\".");
    }
  }
}

void check_delayed(
    const ParameterSelection& selection,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  const auto& delayed = options.delay_all_reduce_named_params;
  const auto& trigger = options.param_to_hook_all_reduce;
  WEFT_CHECK(
      delayed.empty() == trigger.empty(),
      "ddp",
      context_of(dp),
      "delay_all_reduce_named_params and param_to_hook_all_reduce must be set "
      "together: ",
      delayed.size(),
      " names and \"",
      trigger,
      "\" given.");
  auto names = delayed;
  if (!trigger.empty()) {
    names.push_back(trigger);
  }
  for (const auto& name : names) {
    const auto& all = selection.reduced;
    WEFT_CHECK(
        std::any_of(
            all.begin(),
            all.end(),
            [&](const auto& each) { return each.state.name == name; }),
        "ddp",
        context_of(dp),
        name == trigger ? "param_to_hook_all_reduce"
                        : "delay_all_reduce_named_params",
        " names \"",
        name,
        "\", which is not a trainable parameter. Give fully qualified names.");
  }
  WEFT_CHECK(
      trigger.empty() ||
          std::find(delayed.begin(), delayed.end(), trigger) == delayed.end(),
      "ddp",
      context_of(dp),
      "param_to_hook_all_reduce \"",
      trigger,
      "\" is itself one of delay_all_reduce_named_params, which would then "
      "wait for themselves. Name another parameter.");
  const auto in_front = std::find_if(
      selection.reduced.begin(), selection.reduced.end(), [](const auto& each) {
        return each.is_delayed && each.group != 0;
      });
  WEFT_CHECK(
      in_front == selection.reduced.end(),
      "ddp",
      context_of(dp),
      "delay_all_reduce_named_params: ",
      in_front->state.name,
      " belongs to a parameter group, but delayed parameters are reduced over "
      "all replicas. Leave it out of one of the two.");
}

std::set<std::string> names_in_norms(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_modules()) {
    if (item.value()->name().find("Norm") == std::string::npos) {
      continue;
    }
    for (const auto& own : item.value()->named_parameters(false)) {
      names.insert(
          item.key().empty() ? own.key() : item.key() + "." + own.key());
    }
  }
  return names;
}

void select_precision(
    const torch::nn::Module& module,
    const MixedPrecision& precision,
    ParameterSelection& selection) {
  const auto norms = precision.norms_in_full_precision
                         ? names_in_norms(module)
                         : std::set<std::string>();
  const auto is_full = [&](const data_parallel::NamedTensor& item) {
    return !at::isFloatingType(item.tensor.scalar_type()) ||
           norms.contains(item.name) ||
           matches_any(precision.full_precision, item.name);
  };
  for (const auto& item : selection.parameters) {
    if (precision.param_dtype && !is_full(item)) {
      selection.cast.push_back(item.tensor);
    }
  }
  for (auto& item : selection.reduced) {
    if (is_full(item.state)) {
      continue;
    }
    item.is_cast = precision.param_dtype.has_value();
    item.reduce_dtype = precision.reduce_dtype.value_or(
        precision.param_dtype.value_or(item.reduce_dtype));
  }
}

void check_precision(
    const mesh::DeviceMesh& dp,
    const MixedPrecision& precision) {
  const auto check = [&](const char* option,
                         const std::optional<c10::ScalarType>& dtype) {
    WEFT_CHECK(
        !dtype || at::isFloatingType(*dtype),
        "ddp",
        context_of(dp),
        "mixed_precision.",
        option,
        " must be a floating point type: ",
        dtype.value_or(at::kFloat),
        " is not.");
  };
  check("param_dtype", precision.param_dtype);
  check("reduce_dtype", precision.reduce_dtype);
  check("buffer_dtype", precision.buffer_dtype);
}

} // namespace

bool matches_name(const std::string& pattern, const std::string& name) {
  return pattern == name ||
         fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::vector<data_parallel::NamedTensor> select_buffers(
    const torch::nn::Module& module,
    const DistributedDataParallelOptions& options) {
  return without_ignored(data_parallel::buffers_of(module), options);
}

ParameterSelection select_parameters(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  check_ignored_exist(module, dp, options);
  ParameterSelection selection{
      .parameters =
          without_ignored(data_parallel::parameters_of(module), options),
      .buffers = select_buffers(module, options),
      .reduced = {},
      .groups = groups_of(dp, options),
      .cast = {}};
  const auto& delayed = options.delay_all_reduce_named_params;
  const data_parallel::ParameterOwners owners(module);
  for (const auto& item : selection.parameters) {
    const auto group = group_of(options, item.name);
    check_mesh(item, dp, selection.groups[group].group);
    if (item.tensor.requires_grad()) {
      ReducedParameter reduced;
      reduced.state = item;
      for (const auto& owner : owners.of(item.tensor)) {
        reduced.modules +=
            (reduced.modules.empty() ? "" : " and ") + describe(owner);
      }
      reduced.group = group;
      reduced.is_delayed =
          std::find(delayed.begin(), delayed.end(), item.name) != delayed.end();
      reduced.reduce_dtype = item.tensor.scalar_type();
      selection.reduced.push_back(std::move(reduced));
    }
  }
  check_groups_are_used(selection, dp, options);
  check_delayed(selection, dp, options);
  if (options.mixed_precision) {
    check_precision(dp, *options.mixed_precision);
    select_precision(module, *options.mixed_precision, selection);
  }
  return selection;
}

} // namespace weft::ddp
