// PrepareModuleInput, PrepareModuleOutput and PrepareModuleInputOutput.

#include "dtensor/scopes/module_call.h"
#include "mesh/error/error.h"
#include "tp/module_tensors.h"
#include "tp/style.h"

namespace weft::tp {
namespace {

// The layouts of one side of a module, as the options give them.
struct PreparedTensors {
  std::string style;
  /// "input" or "output".
  std::string what;
  Layouts from, to;
  std::map<std::string, Layout> kwargs_from = {};
  std::map<std::string, Layout> kwargs_to = {};
  bool use_local = false;
};

mesh::ErrorContext where_on(const mesh::DeviceMesh& mesh) {
  return {mesh.describe_rank()};
}

void check_list(
    const PreparedTensors& prepared,
    const StyleTarget& target,
    const Layouts& layouts,
    const std::string& what) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i]) {
      layouts[i]->check(
          target.mesh,
          prepared.style,
          target.name() + ": " + what + " " + std::to_string(i));
    }
  }
}

void check_kwargs(
    const PreparedTensors& prepared,
    const StyleTarget& target,
    const std::map<std::string, Layout>& own,
    const std::map<std::string, Layout>& other,
    const std::string& what,
    const std::string& other_what) {
  for (const auto& [name, layout] : own) {
    WEFT_CHECK(
        other.contains(name),
        prepared.style,
        where_on(target.mesh),
        target.name(),
        ": ",
        what,
        " has \"",
        name,
        "\", which ",
        other_what,
        " lacks. Give both the same names.");
    layout.check(
        target.mesh,
        prepared.style,
        target.name() + ": " + what + " \"" + name + "\"");
  }
}

void check_prepared(
    const PreparedTensors& prepared,
    const StyleTarget& target) {
  const auto from = prepared.what + "_layouts";
  const auto to = "desired_" + from;
  WEFT_CHECK(
      prepared.from.size() == prepared.to.size(),
      prepared.style,
      where_on(target.mesh),
      target.name(),
      ": got ",
      prepared.from.size(),
      " ",
      from,
      " and ",
      prepared.to.size(),
      " ",
      to,
      ", expected one of each per tensor. Give std::nullopt for a tensor that "
      "stays unchanged.");
  check_list(prepared, target, prepared.from, from);
  check_list(prepared, target, prepared.to, to);
  const auto kwargs = prepared.what + "_kwarg_layouts";
  check_kwargs(
      prepared,
      target,
      prepared.kwargs_from,
      prepared.kwargs_to,
      kwargs,
      "desired_" + kwargs);
  check_kwargs(
      prepared,
      target,
      prepared.kwargs_to,
      prepared.kwargs_from,
      "desired_" + kwargs,
      kwargs);
}

void place_list(
    const PreparedTensors& prepared,
    const mesh::DeviceMesh& mesh,
    const std::string& path,
    std::vector<at::Tensor>& tensors) {
  if (prepared.from.empty()) {
    return;
  }
  WEFT_CHECK(
      tensors.size() == prepared.from.size(),
      prepared.style,
      where_on(mesh),
      "module \"",
      path,
      "\": got ",
      tensors.size(),
      " ",
      prepared.what,
      " tensors, expected ",
      prepared.from.size(),
      ", one per entry of ",
      prepared.what,
      "_layouts. Give std::nullopt for a tensor that stays unchanged.");
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (const auto& from = prepared.from[i]) {
      tensors[i] = place_tensor(
          tensors[i], mesh, {*from, prepared.to[i], prepared.use_local});
    }
  }
}

void place_kwargs(
    const PreparedTensors& prepared,
    const mesh::DeviceMesh& mesh,
    std::vector<dtensor::Kwarg>& kwargs) {
  for (auto& [name, tensor] : kwargs) {
    const auto from = prepared.kwargs_from.find(name);
    if (from != prepared.kwargs_from.end()) {
      tensor = place_tensor(
          tensor,
          mesh,
          {from->second, prepared.kwargs_to.at(name), prepared.use_local});
    }
  }
}

void prepare_inputs(
    const PreparedTensors& prepared,
    const StyleTarget& target) {
  dtensor::module_hooks(target.module)
      .before.emplace_back([prepared, mesh = target.mesh, path = target.path](
                               dtensor::CallInputs& inputs) {
        place_list(prepared, mesh, path, inputs.args);
        place_kwargs(prepared, mesh, inputs.kwargs);
      });
}

void prepare_outputs(
    const PreparedTensors& prepared,
    const StyleTarget& target) {
  dtensor::module_hooks(target.module)
      .after.emplace_back([prepared, mesh = target.mesh, path = target.path](
                              std::vector<at::Tensor>& outputs) {
        place_list(prepared, mesh, path, outputs);
      });
}

ParallelStyle prepare_style(
    const std::string& name,
    std::optional<PreparedTensors> inputs,
    std::optional<PreparedTensors> outputs) {
  return ParallelStyle(
      {.name = name,
       .prepares_inputs = inputs.has_value(),
       .prepares_outputs = outputs.has_value(),
       .place =
           [inputs, outputs](const StyleTarget& target) {
             if (inputs) {
               check_prepared(*inputs, target);
             }
             if (outputs) {
               check_prepared(*outputs, target);
             }
             return std::map<std::string, Placements>();
           },
       .apply =
           [inputs, outputs](const StyleTarget& target) {
             if (inputs) {
               prepare_inputs(*inputs, target);
             }
             if (outputs) {
               prepare_outputs(*outputs, target);
             }
           }});
}

} // namespace

ParallelStyle PrepareModuleInput(PrepareModuleInputOptions options) {
  const std::string name = "PrepareModuleInput";
  return prepare_style(
      name,
      PreparedTensors{
          name,
          "input",
          options.input_layouts,
          options.desired_input_layouts,
          options.input_kwarg_layouts,
          options.desired_input_kwarg_layouts,
          options.use_local_output},
      std::nullopt);
}

ParallelStyle PrepareModuleOutput(PrepareModuleOutputOptions options) {
  const std::string name = "PrepareModuleOutput";
  return prepare_style(
      name,
      std::nullopt,
      PreparedTensors{
          .style = name,
          .what = "output",
          .from = options.output_layouts,
          .to = options.desired_output_layouts,
          .use_local = options.use_local_output});
}

ParallelStyle PrepareModuleInputOutput(
    PrepareModuleInputOutputOptions options) {
  const std::string name = "PrepareModuleInputOutput";
  return prepare_style(
      name,
      PreparedTensors{
          name,
          "input",
          options.input_layouts,
          options.desired_input_layouts,
          options.input_kwarg_layouts,
          options.desired_input_kwarg_layouts,
          options.use_local_input},
      PreparedTensors{
          .style = name,
          .what = "output",
          .from = options.output_layouts,
          .to = options.desired_output_layouts,
          .use_local = options.use_local_output});
}

} // namespace weft::tp
