#include "tp/parallelize_module.h"

#include <map>
#include <set>

#include <torch/torch.h>

#include "dtensor/nn/distribute_module.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tp/module_pattern.h"

namespace weft::tp {
namespace {

using torch::nn::Module;

constexpr const char* kOp = "parallelize_module";

struct NamedModule {
  std::string path;
  Module* module;
};

// Returns the modules except hooks, which are stored as child modules and are
// not meant by patterns.
std::vector<NamedModule> modules_of(Module& module) {
  std::vector<NamedModule> modules;
  for (const auto& item : module.named_modules()) {
    if (!item.value()->as<dtensor::ModuleHooks>()) {
      modules.push_back({item.key(), item.value().get()});
    }
  }
  return modules;
}

struct Step {
  std::string pattern;
  ParallelStyle style;
  NamedModule target;
  std::map<std::string, Placements> places = {};
};

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += text.empty() ? "" : ", ";
    if (text.size() > 400) {
      return text + "...";
    }
    text += "\"" + name + "\"";
  }
  return text;
}

void require_match(
    bool any,
    const std::string& pattern,
    const std::vector<NamedModule>& modules,
    const mesh::DeviceMesh& mesh) {
  if (any) {
    return;
  }
  std::vector<std::string> paths;
  for (const auto& [path, module] : modules) {
    paths.push_back(path);
  }
  const auto near = quoted_list(nearest_names(pattern, paths));
  WEFT_CHECK(
      any,
      kOp,
      dtensor::context_of(mesh),
      "no module matches \"",
      pattern,
      "\". ",
      near.empty() ? "" : "Did you mean " + near + "? ",
      "There are ",
      quoted_list(paths),
      ".");
}

// Finds which style applies to which module, including nested plans.
void resolve(
    const ParallelizePlan& plan,
    const std::string& below,
    const std::vector<NamedModule>& modules,
    const mesh::DeviceMesh& mesh,
    std::vector<Step>& steps) {
  for (const auto& [name, value] : plan) {
    const auto pattern = join_patterns(below, name);
    std::set<const Module*> met;
    for (const auto& named : modules) {
      if (!matches(pattern, named.path) || !met.insert(named.module).second) {
        continue;
      }
      if (value.style()) {
        steps.push_back({pattern, *value.style(), named});
      }
    }
    require_match(!met.empty(), pattern, modules, mesh);
    resolve(value.plan(), pattern, modules, mesh, steps);
  }
}

const char* contradiction(const Step& one, const Step& other) {
  const auto& a = *one.style.operator->();
  const auto& b = *other.style.operator->();
  return a.places_parameters && b.places_parameters ? "place its parameters"
         : a.prepares_inputs && b.prepares_inputs   ? "prepare its inputs"
         : a.prepares_outputs && b.prepares_outputs ? "prepare its outputs"
                                                    : nullptr;
}

void check_contradictions(
    const std::vector<Step>& steps,
    const mesh::DeviceMesh& mesh) {
  std::map<const Module*, std::vector<const Step*>> by_module;
  for (const auto& step : steps) {
    auto& earlier = by_module[step.target.module];
    for (const auto* other : earlier) {
      const auto* what = contradiction(*other, step);
      WEFT_CHECK(
          !what,
          kOp,
          dtensor::context_of(mesh),
          "\"",
          other->pattern,
          "\" and \"",
          step.pattern,
          "\" give module \"",
          step.target.path,
          "\" ",
          other->style->name,
          " and ",
          step.style->name,
          ", which both ",
          what ? what : "",
          ". Keep one.");
    }
    earlier.push_back(&step);
  }
}

// The placements of all parameters after the plan. Parameters without a style
// are replicated. A tensor that two modules share must have the same placements
// in both.
class PlacementMap {
 public:
  explicit PlacementMap(const mesh::DeviceMesh& mesh) : mesh_(mesh) {}

  void add(
      const NamedModule& owner,
      const std::string& name,
      const at::Tensor& tensor,
      const Placements& placements) {
    const auto fqn = owner.path.empty() ? name : owner.path + "." + name;
    const auto normal = dtensor::normalized(placements, tensor.dim());
    dtensor::check_distributable(
        *owner.module, name, mesh_, normal, owner.path);
    const auto [it, is_new] = places_.emplace(
        tensor.unsafeGetTensorImpl(), Place{owner.module, fqn, normal});
    const auto& first = it->second;
    if (is_new || (first.owner == owner.module && first.fqn == fqn)) {
      return;
    }
    WEFT_CHECK(
        dtensor::is_dtensor(tensor),
        kOp,
        dtensor::context_of(mesh_),
        "\"",
        first.fqn,
        "\" and \"",
        fqn,
        "\" are the same plain tensor, which would be replaced by two tensors. "
        "Build the model inside weft::dtensor::DeferredInit.");
    WEFT_CHECK(
        first.placements == normal,
        kOp,
        dtensor::context_of(mesh_),
        "\"",
        first.fqn,
        "\" and \"",
        fqn,
        "\" are the same tensor, but their styles place it differently: ",
        text_of(first.placements),
        " vs ",
        text_of(normal),
        ". Choose styles that agree.");
  }

 private:
  struct Place {
    const Module* owner;
    std::string fqn;
    Placements placements;
  };
  static std::string text_of(const Placements& placements) {
    std::string text;
    for (const auto& placement : placements) {
      text += (text.empty() ? "" : ", ") + placement.to_string();
    }
    return "[" + text + "]";
  }

  const mesh::DeviceMesh& mesh_;
  std::map<const c10::TensorImpl*, Place> places_;
};

void check_places(
    const std::vector<Step>& steps,
    const std::vector<NamedModule>& modules,
    const mesh::DeviceMesh& mesh) {
  PlacementMap places(mesh);
  const Placements whole(mesh.ndim(), Replicate());
  std::map<const Module*, std::set<std::string>> styled;
  for (const auto& step : steps) {
    const auto own = step.target.module->named_parameters(/*recurse=*/false);
    for (const auto& [name, placements] : step.places) {
      places.add(step.target, name, own[name], placements);
      styled[step.target.module].insert(name);
    }
  }
  std::set<const Module*> seen;
  for (const auto& named : modules) {
    if (!seen.insert(named.module).second) {
      continue;
    }
    for (const auto& item : named.module->named_parameters(/*recurse=*/false)) {
      const auto& tensor = item.value();
      const bool is_placed = dtensor::is_dtensor(tensor) &&
                             dtensor::spec_of(tensor).mesh_ndim() != 0;
      // A DTensor that a style places through another module gets its placement
      // there.
      if (is_placed || styled[named.module].contains(item.key())) {
        continue;
      }
      if (dtensor::is_dtensor(tensor)) {
        dtensor::check_distributable(
            *named.module, item.key(), mesh, whole, named.path);
      } else {
        places.add(named, item.key(), tensor, whole);
      }
    }
  }
}

} // namespace

PlanValue::PlanValue(const ParallelizePlan& plan)
    : plan_(std::make_shared<const ParallelizePlan>(plan)) {}

PlanValue::PlanValue(
    std::initializer_list<std::pair<std::string, PlanValue>> plan)
    : PlanValue(ParallelizePlan(plan)) {}

const ParallelizePlan& PlanValue::plan() const {
  static const ParallelizePlan kNone;
  return plan_ ? *plan_ : kNone;
}

void parallelize_module(
    Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options) {
  const auto modules = modules_of(module);
  std::vector<Step> steps;
  resolve(plan, "", modules, mesh, steps);
  check_contradictions(steps, mesh);
  for (auto& step : steps) {
    step.places =
        step.style->place({*step.target.module, mesh, step.target.path});
  }
  check_places(steps, modules, mesh);
  for (const auto& step : steps) {
    for (const auto& [name, placements] : step.places) {
      dtensor::distribute_parameter(
          *step.target.module,
          name,
          mesh,
          placements,
          step.target.path,
          options.src_data_rank);
    }
    step.style->apply({*step.target.module, mesh, step.target.path});
  }
  dtensor::replicate_unplaced(module, mesh, options.src_data_rank);
}

void parallelize_module(
    Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options) {
  parallelize_module(
      module, mesh, ParallelizePlan{{"", PlanValue(style)}}, options);
}

} // namespace weft::tp
