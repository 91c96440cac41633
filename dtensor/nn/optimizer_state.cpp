#include "dtensor/nn/optimizer_state.h"

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include "base/string_streams.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

constexpr const char* kOptimizerOp = "optimizer_state_dict";

/// A number of an optimizer, e.g. a learning rate, with functions to read and
/// write it.
struct Number {
  std::string name;
  at::ScalarType dtype;
  std::function<std::vector<double>()> get;
  std::function<void(const std::vector<double>&)> set;
};

struct Moment {
  std::string name;
  at::Tensor tensor;
};

/// A parameter whose state is listed.
struct StateOwner {
  const at::Tensor& parameter;
  const std::string& fqn;
  /// True if the state dict to be loaded has state for this parameter.
  bool is_held;

  /// Returns true if the state that the first step would create is created now.
  bool learns() const { return parameter.requires_grad() || is_held; }
};

struct ParameterState {
  std::vector<Number> group;
  std::vector<Number> numbers;
  std::vector<Moment> moments;
};

template <class Get, class Set>
Number number(std::string name, Get get, Set set) {
  return {
      std::move(name),
      at::kDouble,
      [get] { return std::vector<double>{get()}; },
      [set](const std::vector<double>& v) { set(v.front()); }};
}

template <class Options>
Number lr_number(Options& options) {
  return number(
      "lr", [&] { return options.lr(); }, [&](double v) { options.lr(v); });
}

template <class Options>
Number eps_number(Options& options) {
  return number(
      "eps", [&] { return options.eps(); }, [&](double v) { options.eps(v); });
}

template <class Options>
Number weight_decay_number(Options& options) {
  return number(
      "weight_decay",
      [&] { return options.weight_decay(); },
      [&](double v) { options.weight_decay(v); });
}

template <class Options>
Number momentum_number(Options& options) {
  return number(
      "momentum",
      [&] { return options.momentum(); },
      [&](double v) { options.momentum(v); });
}

template <class State>
Number step_number(State& state) {
  auto result = number(
      "step",
      [&state] { return static_cast<double>(state.step()); },
      [&state](double v) { state.step(static_cast<int64_t>(v)); });
  result.dtype = at::kLong;
  return result;
}

template <class Options>
std::vector<Number> adam_group(Options& options) {
  return {
      lr_number(options),
      {"betas",
       at::kDouble,
       [&options] {
         const auto [first, second] = options.betas();
         return std::vector<double>{first, second};
       },
       [&options](const std::vector<double>& v) {
         options.betas(std::make_tuple(v.at(0), v.at(1)));
       }},
      eps_number(options),
      weight_decay_number(options)};
}

template <class State, class Slot>
State* find_or_make(Slot& slot, bool is_to_be_made) {
  if (!is_to_be_made && !has_optimizer_state(slot.get())) {
    return nullptr;
  }
  if (!slot) {
    slot = std::make_unique<State>();
  }
  return static_cast<State*>(slot.get());
}

// Adds a moment to `result` if it exists. If `is_to_be_made`, a missing moment
// is created first, filled with `value`, as the first step would do. A frozen
// parameter keeps the moments that it has.
void list_moment(
    ParameterState& result,
    std::string name,
    at::Tensor& moment,
    bool is_to_be_made,
    const at::Tensor& parameter,
    double value = 0) {
  if (is_to_be_made && !moment.defined()) {
    moment = value == 0 ? at::zeros_like(parameter)
                        : at::full_like(parameter, value);
  }
  if (moment.defined()) {
    result.moments.push_back({std::move(name), moment});
  }
}

template <class State, class Options, class Slot>
ParameterState adam_state(
    Options& options,
    Slot& slot,
    const at::Tensor& parameter,
    bool learns) {
  ParameterState result;
  result.group = adam_group(options);
  auto* state = find_or_make<State>(slot, learns);
  if (!state) {
    return result;
  }
  result.numbers = {step_number(*state)};
  list_moment(result, "exp_avg", state->exp_avg(), learns, parameter);
  list_moment(result, "exp_avg_sq", state->exp_avg_sq(), learns, parameter);
  list_moment(
      result,
      "max_exp_avg_sq",
      state->max_exp_avg_sq(),
      learns && options.amsgrad(),
      parameter);
  return result;
}

// Creates a missing momentum as zeros. The first step would copy the gradient
// into it; zeros give the same unless the gradient is dampened.
template <class Slot>
ParameterState sgd_state(
    torch::optim::SGDOptions& options,
    Slot& slot,
    const StateOwner& owner) {
  ParameterState result;
  result.group = {
      lr_number(options),
      momentum_number(options),
      weight_decay_number(options)};
  const bool needs_momentum = owner.learns() && options.momentum() != 0;
  TORCH_CHECK_NOT_IMPLEMENTED(
      !needs_momentum || slot || owner.is_held || options.dampening() == 0,
      "[",
      kOptimizerOp,
      "] SGD with dampening has no momentum of \"",
      owner.fqn,
      "\" before its first step with a gradient of that. Take one (before a "
      "checkpoint is read, one with gradients of zeros will do: what it "
      "changes is replaced), freeze the parameter, or set dampening to 0.");
  auto* state = find_or_make<torch::optim::SGDParamState>(slot, needs_momentum);
  if (!state) {
    return result;
  }
  list_moment(
      result,
      "momentum_buffer",
      state->momentum_buffer(),
      needs_momentum,
      owner.parameter);
  return result;
}

template <class Slot>
ParameterState adagrad_state(
    torch::optim::AdagradOptions& options,
    Slot& slot,
    const at::Tensor& parameter,
    bool learns) {
  ParameterState result;
  result.group = {
      lr_number(options),
      number(
          "lr_decay",
          [&] { return options.lr_decay(); },
          [&](double v) { options.lr_decay(v); }),
      eps_number(options),
      weight_decay_number(options)};
  auto* state = find_or_make<torch::optim::AdagradParamState>(slot, learns);
  if (!state) {
    return result;
  }
  result.numbers = {step_number(*state)};
  list_moment(
      result,
      "sum",
      state->sum(),
      learns,
      parameter,
      options.initial_accumulator_value());
  return result;
}

template <class Slot>
ParameterState rmsprop_state(
    torch::optim::RMSpropOptions& options,
    Slot& slot,
    const at::Tensor& parameter,
    bool learns) {
  ParameterState result;
  result.group = {
      lr_number(options),
      number(
          "alpha",
          [&] { return options.alpha(); },
          [&](double v) { options.alpha(v); }),
      eps_number(options),
      weight_decay_number(options),
      momentum_number(options)};
  auto* state = find_or_make<torch::optim::RMSpropParamState>(slot, learns);
  if (!state) {
    return result;
  }
  result.numbers = {step_number(*state)};
  list_moment(result, "square_avg", state->square_avg(), learns, parameter);
  list_moment(
      result,
      "momentum_buffer",
      state->momentum_buffer(),
      learns && options.momentum() > 0,
      parameter);
  list_moment(
      result,
      "grad_avg",
      state->grad_avg(),
      learns && options.centered(),
      parameter);
  return result;
}

template <class Slot>
ParameterState read_state(
    torch::optim::OptimizerOptions& options,
    Slot& slot,
    const StateOwner& owner) {
  namespace optim = torch::optim;
  const auto& parameter = owner.parameter;
  const bool learns = owner.learns();
  if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(&options)) {
    return adam_state<optim::AdamWParamState>(*adamw, slot, parameter, learns);
  }
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) {
    return adam_state<optim::AdamParamState>(*adam, slot, parameter, learns);
  }
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) {
    return sgd_state(*sgd, slot, owner);
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradOptions*>(&options)) {
    return adagrad_state(*adagrad, slot, parameter, learns);
  }
  if (auto* rmsprop = dynamic_cast<optim::RMSpropOptions*>(&options)) {
    return rmsprop_state(*rmsprop, slot, parameter, learns);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[",
      kOptimizerOp,
      "] the state of this optimizer is not supported. Supported are Adam, "
      "AdamW, SGD, Adagrad and RMSprop; for others, build a StateDict by "
      "hand.");
}

using NamedOptions = std::vector<std::pair<const char*, double>>;

NamedOptions named_options(const torch::optim::OptimizerOptions& options) {
  namespace optim = torch::optim;
  const auto adam = [](const auto& of) -> NamedOptions {
    const auto [first, second] = of.betas();
    return {
        {"lr", of.lr()},
        {"betas[0]", first},
        {"betas[1]", second},
        {"eps", of.eps()},
        {"weight_decay", of.weight_decay()},
        {"amsgrad", of.amsgrad()}};
  };
  if (const auto* of = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    return adam(*of);
  }
  if (const auto* of = dynamic_cast<const optim::AdamOptions*>(&options)) {
    return adam(*of);
  }
  if (const auto* of = dynamic_cast<const optim::SGDOptions*>(&options)) {
    return {
        {"lr", of->lr()},
        {"momentum", of->momentum()},
        {"dampening", of->dampening()},
        {"weight_decay", of->weight_decay()},
        {"nesterov", of->nesterov()}};
  }
  if (const auto* of = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    return {
        {"lr", of->lr()},
        {"lr_decay", of->lr_decay()},
        {"eps", of->eps()},
        {"weight_decay", of->weight_decay()}};
  }
  if (const auto* of = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    return {
        {"lr", of->lr()},
        {"alpha", of->alpha()},
        {"eps", of->eps()},
        {"weight_decay", of->weight_decay()},
        {"momentum", of->momentum()},
        {"centered", of->centered()}};
  }
  return {};
}

std::unordered_map<const c10::TensorImpl*, std::string> parameter_names(
    const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

/// Visits the state of every parameter of the optimizer. State that the first
/// step would create is created for parameters that require a gradient and for
/// those for which `holds` returns true. Throws if a parameter is not one of
/// the module.
void for_each_state(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const std::function<bool(const std::string& fqn)>& holds,
    const std::function<void(const std::string& fqn, ParameterState)>& visit) {
  const at::NoGradGuard no_grad;
  const auto names = parameter_names(module);
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(
          found != names.end(),
          "[",
          kOptimizerOp,
          "] the optimizer updates a tensor of sizes ",
          parameter.sizes(),
          " that is not a parameter of the module. Pass the module whose "
          "parameters() it was made with.");
      auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
      // The optimizer's next step would take an empty slot for a state.
      const auto drop_empty = c10::make_scope_exit([&] {
        if (!slot) {
          optimizer.state().erase(parameter.unsafeGetTensorImpl());
        }
      });
      auto state = read_state(
          group.options(),
          slot,
          {parameter, found->second, holds(found->second)});
      visit(found->second, std::move(state));
    }
  }
}

std::vector<std::pair<std::string, size_t>> groups_of(
    const torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module) {
  const auto names = parameter_names(module);
  std::vector<std::pair<std::string, size_t>> result;
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& parameter : groups[i].params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found != names.end()) {
        result.emplace_back(found->second, i);
      }
    }
  }
  return result;
}

at::Tensor to_tensor(const Number& number) {
  const auto values = number.get();
  auto tensor = at::empty(
      values.size() == 1
          ? std::vector<int64_t>{}
          : std::vector<int64_t>{static_cast<int64_t>(values.size())},
      at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  return tensor.to(number.dtype);
}

const at::Tensor& local_of(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

const at::Tensor& entry(const StateDict& state, const std::string& key) {
  const auto found = state.find(key);
  TORCH_CHECK_VALUE(
      found != state.end(),
      "[load_optimizer_state_dict] \"",
      key,
      "\" is missing.");
  return found->second;
}

/// Returns the rest of each key that starts with `prefix`. Rests with a dot are
/// left out: they belong to another parameter, in a module of that name.
std::vector<std::string> names_after(
    const StateDict& state,
    const std::string& prefix) {
  std::vector<std::string> names;
  for (auto it = state.lower_bound(prefix);
       it != state.end() && it->first.starts_with(prefix);
       ++it) {
    auto name = it->first.substr(prefix.size());
    if (name.find('.') == std::string::npos) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

at::Tensor values_of(const at::Tensor& number) {
  return local_of(number).to(at::kDouble).reshape({-1});
}

std::string to_text(const at::Tensor& values) {
  std::string text;
  const auto whole = values.cpu().contiguous();
  for (int64_t i = 0; i < whole.numel(); ++i) {
    text += c10::str(i == 0 ? "" : ", ", whole.const_data_ptr<double>()[i]);
  }
  return text;
}

void take_number(
    const StateDict& state,
    const std::string& key,
    const Number& number) {
  const auto values =
      local_of(entry(state, key)).to(at::kDouble).reshape({-1}).contiguous();
  const auto expected = number.get().size();
  TORCH_CHECK_VALUE(
      values.numel() == static_cast<int64_t>(expected),
      "[load_optimizer_state_dict] \"",
      key,
      "\" has ",
      values.numel(),
      " elements; there should be ",
      expected,
      ".");
  const auto* data = values.const_data_ptr<double>();
  number.set({data, data + values.numel()});
}

void take_moment(
    const StateDict& state,
    const std::string& key,
    const Moment& moment) {
  const auto& from = local_of(entry(state, key));
  const auto& to = local_of(moment.tensor);
  TORCH_CHECK_VALUE(
      from.sizes() == to.sizes(),
      "[load_optimizer_state_dict] \"",
      key,
      "\" is ",
      from.sizes(),
      " on this rank and should be ",
      to.sizes(),
      ".");
  if (!from.is_alias_of(to)) {
    at::Tensor(to).copy_(from);
  }
}

} // namespace

bool has_optimizer_state(const torch::optim::OptimizerParamState* state) {
  // Adagrad's constructor already creates the state, so it counts only after
  // the first step.
  const auto* adagrad =
      dynamic_cast<const torch::optim::AdagradParamState*>(state);
  return state && (!adagrad || adagrad->step() != 0);
}

StateDict optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const StateDict* to_be_loaded) {
  StateDict result;
  for_each_state(
      optimizer,
      module,
      [&](const std::string& fqn) {
        return to_be_loaded && holds_state(*to_be_loaded, fqn);
      },
      [&](const std::string& fqn, const ParameterState& state) {
        for (const auto& number : state.group) {
          result.emplace(
              "param_groups." + fqn + "." + number.name,
              on_mesh(to_tensor(number), mesh));
        }
        for (const auto& number : state.numbers) {
          result.emplace(
              "state." + fqn + "." + number.name,
              on_mesh(to_tensor(number), mesh));
        }
        for (const auto& moment : state.moments) {
          result.emplace(
              "state." + fqn + "." + moment.name, on_mesh(moment.tensor, mesh));
        }
      });
  return result;
}

std::string describe_options(const torch::optim::Optimizer& optimizer) {
  base::StringWriter out;
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, value] : named_options(groups[i].options())) {
      out << "group " << i << ' ' << name << ' ' << fmt::format("{}", value)
          << '\n';
    }
  }
  return out.str();
}

bool holds_state(const StateDict& state, const std::string& fqn) {
  return !names_after(state, "state." + fqn + ".").empty();
}

void check_numbers_of_groups(
    const std::vector<std::pair<std::string, size_t>>& groups,
    const StateDict& state) {
  // The first parameter with a number, by group and name of the number.
  std::map<std::pair<size_t, std::string>, std::string> firsts;
  for (const auto& [fqn, group] : groups) {
    for (const auto& name : names_after(state, "param_groups." + fqn + ".")) {
      const auto& first = firsts.try_emplace({group, name}, fqn).first->second;
      const auto expected =
          values_of(state.at("param_groups." + first + "." + name));
      const auto found =
          values_of(state.at("param_groups." + fqn + "." + name));
      TORCH_CHECK_VALUE(
          expected.is_meta() || at::equal(expected, found),
          "[load_optimizer_state_dict] ",
          name,
          " of \"",
          first,
          "\" is ",
          to_text(expected),
          " and of \"",
          fqn,
          "\" ",
          to_text(found),
          ", but both are in group ",
          group,
          " of this optimizer, which has one ",
          name,
          ". Give it the groups of parameters that were saved, or make the "
          "numbers equal in the state.");
    }
  }
}

void load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const StateDict& dict) {
  check_numbers_of_groups(groups_of(optimizer, module), dict);
  for_each_state(
      optimizer,
      module,
      [&](const std::string& fqn) { return holds_state(dict, fqn); },
      [&](const std::string& fqn, const ParameterState& state) {
        for (const auto& number : state.group) {
          take_number(dict, "param_groups." + fqn + "." + number.name, number);
        }
        for (const auto& number : state.numbers) {
          take_number(dict, "state." + fqn + "." + number.name, number);
        }
        for (const auto& moment : state.moments) {
          take_moment(dict, "state." + fqn + "." + moment.name, moment);
        }
      });
}

} // namespace weft::dtensor
