#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace weft::dtensor {

/// Returns the type name of a module: LlamaForCausalLM for
/// "weft::models::LlamaForCausalLMImpl".
std::string module_type_name(const torch::nn::Module& module);

/// A named tensor argument. See kwarg().
struct Kwarg {
  /// The name of the argument.
  std::string name;
  /// The argument.
  at::Tensor tensor;
};

/// Names an argument: `call(module, x, kwarg("mask", mask))` runs
/// `module->forward(x, mask)`, and hooks see the second argument by its name
/// instead of its position.
inline Kwarg kwarg(std::string name, at::Tensor tensor) {
  return {std::move(name), std::move(tensor)};
}

/// The tensor arguments of a call, in order.
struct CallInputs {
  /// The arguments without a name.
  std::vector<at::Tensor> args;
  /// The arguments with a name.
  std::vector<Kwarg> kwargs;
};

/// The hooks of a module: a style that places its inputs and outputs,
/// activation checkpointing, and names in the flight recorder.
struct ModuleHooks : torch::nn::Module {
  /// Receives the tensor arguments of a call and may replace them: a function
  /// of the positional ones, `void(std::vector<at::Tensor>&)`, or of all,
  /// `void(CallInputs&)`. It must not change their number.
  class Before;
  /// Receives the tensors of a result and may replace them: a function of all
  /// of them, `void(std::vector<at::Tensor>&)`, or `at::Tensor(const
  /// at::Tensor&)` for modules that return one.
  class After;
  /// Runs a call: forward() between its `before` and `after` hooks. `forward`
  /// owns copies of the module's handle and of the arguments, so it may be
  /// copied, stored, and run again after the call.
  using Forward = std::function<std::vector<at::Tensor>()>;
  /// Runs a call, or something in its place, and returns its result.
  using Around = std::function<std::vector<at::Tensor>(const Forward& forward)>;

  /// The hooks before forward(), in the order of their calls.
  std::vector<Before> before;
  /// The hooks after forward(), in the order of their calls.
  std::vector<After> after;
  /// The hooks around forward(). Later ones wrap earlier ones.
  std::vector<Around> around;
  /// True if distribute_module() has added hooks.
  bool distributed = false;
};

/// A hook before forward().
class ModuleHooks::Before {
 public:
  /// Creates the hook of a function of the positional arguments.
  template <std::invocable<std::vector<at::Tensor>&> Hook>
  Before(Hook hook)
      : hook_([hook = std::move(hook)](CallInputs& inputs) mutable {
          hook(inputs.args);
        }) {}
  /// Creates the hook of a function of all arguments.
  template <std::invocable<CallInputs&> Hook>
  requires(
      !std::invocable<Hook&, std::vector<at::Tensor>&> &&
      !std::same_as<std::remove_cvref_t<Hook>, Before>) Before(Hook hook)
      : hook_(std::move(hook)) {}

  /// Calls the function.
  void operator()(CallInputs& inputs) const { hook_(inputs); }

 private:
  std::function<void(CallInputs&)> hook_;
};

/// A hook after forward().
class ModuleHooks::After {
 public:
  /// Creates the hook of a function of the only result.
  template <std::invocable<const at::Tensor&> Hook>
  After(Hook hook)
      : hook_([hook = std::move(hook)](std::vector<at::Tensor>& out) mutable {
          require_one(out.size());
          out[0] = hook(std::as_const(out[0]));
        }) {}
  /// Creates the hook of a function of all results.
  template <std::invocable<std::vector<at::Tensor>&> Hook>
  requires(
      !std::invocable<Hook&, const at::Tensor&> &&
      !std::same_as<std::remove_cvref_t<Hook>, After>) After(Hook hook)
      : hook_(std::move(hook)) {}

  /// Calls the function.
  void operator()(std::vector<at::Tensor>& outputs) const { hook_(outputs); }

 private:
  static void require_one(size_t outputs);
  std::function<void(std::vector<at::Tensor>&)> hook_;
};

/// Returns the hooks of a module, created at the first call. They are stored in
/// the module as a child without parameters.
ModuleHooks& module_hooks(torch::nn::Module& module);
/// Returns the hooks of a module, or null if it has none.
ModuleHooks* find_module_hooks(torch::nn::Module& module);

namespace detail {

inline torch::nn::Module& as_module(torch::nn::Module& module) {
  return module;
}
template <class Impl>
torch::nn::Module& as_module(torch::nn::ModuleHolder<Impl>& holder) {
  return *holder;
}
template <class Impl>
torch::nn::Module& as_module(const std::shared_ptr<Impl>& module) {
  return *module;
}

template <class Arg>
inline constexpr bool is_tensor =
    std::is_same_v<std::remove_cvref_t<Arg>, at::Tensor>;
template <class Arg>
inline constexpr bool is_kwarg =
    std::is_same_v<std::remove_cvref_t<Arg>, Kwarg>;

/// Returns what forward() receives for an argument of call().
template <class Arg>
decltype(auto) forward_argument(Arg&& arg) {
  if constexpr (is_kwarg<Arg>) {
    return (arg.tensor);
  } else {
    return std::forward<Arg>(arg);
  }
}

template <class... Args>
CallInputs inputs_of(const Args&... args) {
  CallInputs inputs;
  const auto add = [&]<class Arg>(const Arg& arg) {
    if constexpr (is_tensor<Arg>) {
      inputs.args.push_back(arg);
    } else if constexpr (is_kwarg<Arg>) {
      inputs.kwargs.push_back(arg);
    }
  };
  (add(args), ...);
  return inputs;
}

/// Returns how many of the first `count` flags are set.
template <size_t N>
constexpr size_t count_set(const bool (&flags)[N], size_t count) {
  size_t set = 0;
  for (size_t i = 0; i < count; ++i) {
    set += flags[i] ? 1 : 0;
  }
  return set;
}

/// Returns argument `I` of call(), after the hooks if it is a tensor.
template <size_t I, class... Args, class Arg>
decltype(auto) hooked_argument(CallInputs& inputs, Arg&& arg) {
  constexpr bool kTensors[] = {is_tensor<Args>...};
  constexpr bool kKwargs[] = {is_kwarg<Args>...};
  if constexpr (is_tensor<Arg>) {
    return (inputs.args[count_set(kTensors, I)]);
  } else if constexpr (is_kwarg<Arg>) {
    return (inputs.kwargs[count_set(kKwargs, I)].tensor);
  } else {
    return std::forward<Arg>(arg);
  }
}

/// The result types that hooks support: conversion to a list of tensors and
/// back.
template <class Result>
struct CallOutputs {
  static constexpr bool kSupported = false;
};
inline constexpr size_t kAnyCount = ~size_t{0};
template <>
struct CallOutputs<at::Tensor> {
  static constexpr bool kSupported = true;
  static constexpr size_t kCount = 1;
  static void append(at::Tensor result, std::vector<at::Tensor>& outputs) {
    outputs.push_back(std::move(result));
  }
  static at::Tensor make(std::vector<at::Tensor>& outputs, size_t first) {
    return std::move(outputs[first]);
  }
};
template <>
struct CallOutputs<std::vector<at::Tensor>> {
  static constexpr bool kSupported = true;
  static constexpr size_t kCount = kAnyCount;
  static void append(
      std::vector<at::Tensor> result,
      std::vector<at::Tensor>& outputs) {
    outputs = std::move(result);
  }
  static std::vector<at::Tensor> make(
      std::vector<at::Tensor>& outputs,
      size_t /*first*/) {
    return std::move(outputs);
  }
};
/// Tuples of tensors or of tuples (an LSTM's result).
template <class... Parts>
requires(
    (CallOutputs<Parts>::kSupported && ...) &&
    (!std::same_as<Parts, std::vector<at::Tensor>> &&
     ...)) struct CallOutputs<std::tuple<Parts...>> {
  static constexpr bool kSupported = true;
  static constexpr size_t kCount = (CallOutputs<Parts>::kCount + ... + 0);
  static void append(
      std::tuple<Parts...> result,
      std::vector<at::Tensor>& outputs) {
    std::apply(
        [&](auto&... parts) {
          (CallOutputs<Parts>::append(std::move(parts), outputs), ...);
        },
        result);
  }
  static std::tuple<Parts...> make(
      std::vector<at::Tensor>& outputs,
      size_t first) {
    // In braces: one after the other.
    const auto next = [&](size_t count) {
      const size_t own = first;
      first += count;
      return own;
    };
    return std::tuple<Parts...>{
        CallOutputs<Parts>::make(outputs, next(CallOutputs<Parts>::kCount))...};
  }
};

void run_before(const ModuleHooks& hooks, CallInputs& inputs);
void run_after(const ModuleHooks& hooks, std::vector<at::Tensor>& outputs);
/// Runs the `around` hooks. `count` is the number of tensors of a result, or
/// kAnyCount.
std::vector<at::Tensor> run_around(
    const ModuleHooks& hooks,
    ModuleHooks::Forward forward,
    size_t count);
[[noreturn]] void throw_cannot_keep(const torch::nn::Module& module);

/// Runs forward() between its `before` and `after` hooks.
template <class Holder, class... Args>
std::vector<at::Tensor>
call_between(Holder& module, const ModuleHooks& hooks, Args&&... args) {
  auto inputs = inputs_of(args...);
  run_before(hooks, inputs);
  auto result = [&]<size_t... I>(std::index_sequence<I...>) {
    return module->forward(
        hooked_argument<I, Args...>(inputs, std::forward<Args>(args))...);
  }
  (std::index_sequence_for<Args...>());
  std::vector<at::Tensor> outputs;
  CallOutputs<decltype(result)>::append(std::move(result), outputs);
  run_after(hooks, outputs);
  return outputs;
}

/// True if the arguments can be copied and forward() accepts the copies as
/// const references, so that the call can be repeated with the same values.
template <class Holder, class... Args>
concept Keepable = (std::copy_constructible<std::decay_t<Args>> && ...) &&
                   requires(Holder& module, const std::decay_t<Args>&... args) {
  module->forward(forward_argument(args)...);
};

/// Returns a function that runs a call from copies of the module's handle and
/// of its arguments.
template <class Holder, class... Args>
ModuleHooks::Forward keep_call(const Holder& module, const Args&... args) {
  auto kept = std::make_shared<std::tuple<std::decay_t<Args>...>>(args...);
  return [own_module = Holder(module), kept]() mutable {
    const auto& hooks = module_hooks(as_module(own_module));
    return std::apply(
        [&](const auto&... own) {
          return call_between(own_module, hooks, own...);
        },
        *kept);
  };
}

} // namespace detail

/// Calls module->forward(args...) with the module's hooks. (C++ modules have no
/// hooks, and forward() is not virtual.) Models call their blocks, attention
/// and MLPs through it; without hooks it costs one lookup. Hooks see all tensor
/// arguments; others (a std::optional, a list) are passed through. forward()
/// returns a tensor, a tuple of tensors or a vector of them.
/// Throws: c10::ValueError if a hook changes the number of tensors, or if a
/// hook must store a call whose arguments cannot be copied or whose forward()
/// takes them by non-const reference.
template <class Holder, class... Args>
auto call(Holder module, Args&&... args) {
  using Result = std::decay_t<decltype(module->forward(
      detail::forward_argument(std::forward<Args>(args))...))>;
  using Outputs = detail::CallOutputs<Result>;
  static_assert(
      Outputs::kSupported,
      "forward() returns a Tensor, a tuple of Tensors or a vector of them");
  auto* hooks = find_module_hooks(detail::as_module(module));
  if (!hooks) {
    return Result(
        module->forward(detail::forward_argument(std::forward<Args>(args))...));
  }
  std::vector<at::Tensor> outputs;
  if (hooks->around.empty()) {
    outputs = detail::call_between(module, *hooks, std::forward<Args>(args)...);
  } else if constexpr (detail::Keepable<Holder, Args...>) {
    outputs = detail::run_around(
        *hooks, detail::keep_call(module, args...), Outputs::kCount);
  } else {
    detail::throw_cannot_keep(detail::as_module(module));
  }
  return Outputs::make(outputs, 0);
}

} // namespace weft::dtensor
