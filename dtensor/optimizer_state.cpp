#include "dtensor/optimizer_state.h"

#include <functional>
#include <unordered_map>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "mesh/error.h"

namespace weft::dtensor {
namespace {

constexpr const char* kOptimizerOp = "optimizer_state_dict";

/// One number of an optimizer, e.g. a learning rate, that reads and writes.
struct Number {
  std::string name;
  at::ScalarType dtype;
  std::function<std::vector<double>()> get;
  std::function<void(const std::vector<double>&)> set;
};

/// One tensor of an optimizer, e.g. a moment.
struct Moment {
  std::string name;
  at::Tensor tensor;
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
State& find_or_make(Slot& slot) {
  if (!slot) {
    slot = std::make_unique<State>();
  }
  return static_cast<State&>(*slot);
}

template <class State, class Options, class Slot>
ParameterState
adam_state(Options& options, Slot& slot, const at::Tensor& parameter) {
  ParameterState result;
  result.group = adam_group(options);
  if (!parameter.requires_grad()) {
    return result;
  }
  auto& state = find_or_make<State>(slot);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter));
    state.exp_avg_sq(at::zeros_like(parameter));
  }
  if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
    state.max_exp_avg_sq(at::zeros_like(parameter));
  }
  result.numbers = {step_number(state)};
  result.moments = {
      {"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
  if (options.amsgrad()) {
    result.moments.push_back({"max_exp_avg_sq", state.max_exp_avg_sq()});
  }
  return result;
}

// The first step would copy the gradient into the momentum; zeros give the
// same unless the gradient is dampened.
template <class Slot>
ParameterState sgd_state(
    torch::optim::SGDOptions& options,
    Slot& slot,
    const at::Tensor& parameter) {
  ParameterState result;
  result.group = {
      lr_number(options),
      momentum_number(options),
      weight_decay_number(options)};
  if (!parameter.requires_grad() || options.momentum() == 0) {
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      slot || options.dampening() == 0,
      "[",
      kOptimizerOp,
      "] SGD with dampening has no momentum before its first step. Take one, "
      "or set dampening to 0.");
  auto& state = find_or_make<torch::optim::SGDParamState>(slot);
  if (!state.momentum_buffer().defined()) {
    state.momentum_buffer(at::zeros_like(parameter));
  }
  result.moments = {{"momentum_buffer", state.momentum_buffer()}};
  return result;
}

template <class Slot>
ParameterState adagrad_state(
    torch::optim::AdagradOptions& options,
    Slot& slot,
    const at::Tensor& parameter) {
  ParameterState result;
  result.group = {
      lr_number(options),
      number(
          "lr_decay",
          [&] { return options.lr_decay(); },
          [&](double v) { options.lr_decay(v); }),
      eps_number(options),
      weight_decay_number(options)};
  if (parameter.requires_grad()) {
    auto& state = find_or_make<torch::optim::AdagradParamState>(slot);
    if (!state.sum().defined()) {
      state.sum(at::full_like(parameter, options.initial_accumulator_value()));
    }
    result.numbers = {step_number(state)};
    result.moments = {{"sum", state.sum()}};
  }
  return result;
}

template <class Slot>
ParameterState rmsprop_state(
    torch::optim::RMSpropOptions& options,
    Slot& slot,
    const at::Tensor& parameter) {
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
  if (!parameter.requires_grad()) {
    return result;
  }
  auto& state = find_or_make<torch::optim::RMSpropParamState>(slot);
  if (!state.square_avg().defined()) {
    state.square_avg(at::zeros_like(parameter));
  }
  if (options.momentum() > 0 && !state.momentum_buffer().defined()) {
    state.momentum_buffer(at::zeros_like(parameter));
  }
  if (options.centered() && !state.grad_avg().defined()) {
    state.grad_avg(at::zeros_like(parameter));
  }
  result.numbers = {step_number(state)};
  result.moments = {{"square_avg", state.square_avg()}};
  if (options.momentum() > 0) {
    result.moments.push_back({"momentum_buffer", state.momentum_buffer()});
  }
  if (options.centered()) {
    result.moments.push_back({"grad_avg", state.grad_avg()});
  }
  return result;
}

template <class Slot>
ParameterState read_state(
    torch::optim::OptimizerOptions& options,
    Slot& slot,
    const at::Tensor& parameter) {
  namespace optim = torch::optim;
  if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(&options)) {
    return adam_state<optim::AdamWParamState>(*adamw, slot, parameter);
  }
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) {
    return adam_state<optim::AdamParamState>(*adam, slot, parameter);
  }
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) {
    return sgd_state(*sgd, slot, parameter);
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradOptions*>(&options)) {
    return adagrad_state(*adagrad, slot, parameter);
  }
  if (auto* rmsprop = dynamic_cast<optim::RMSpropOptions*>(&options)) {
    return rmsprop_state(*rmsprop, slot, parameter);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[",
      kOptimizerOp,
      "] the state of this optimizer cannot be read. Adam, AdamW, SGD, "
      "Adagrad and RMSprop can; for others, build a StateDict by hand.");
}

/// Visits every parameter that the optimizer and the module share.
void for_each_state(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const std::function<void(const std::string& fqn, ParameterState)>& visit) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(
          found != names.end(),
          "[",
          kOptimizerOp,
          "] the optimizer updates a tensor of sizes ",
          parameter.sizes(),
          " that is no parameter of the module. Pass the module whose "
          "parameters() it was made with.");
      auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
      // An empty one would be taken for a state by the next step.
      const auto drop_empty = c10::make_scope_exit([&] {
        if (!slot) {
          optimizer.state().erase(parameter.unsafeGetTensorImpl());
        }
      });
      auto state = read_state(group.options(), slot, parameter);
      visit(found->second, std::move(state));
    }
  }
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

StateDict optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh) {
  StateDict result;
  for_each_state(
      optimizer,
      module,
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

void load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const StateDict& dict) {
  for_each_state(
      optimizer,
      module,
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
