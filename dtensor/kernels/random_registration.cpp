#include <algorithm>
#include <array>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dtensor.h"
#include "dtensor/kernels/random.h"

namespace weft::dtensor::kernels {
namespace {

// The op that returns what a form with out= writes.
std::optional<c10::OperatorHandle> functional_form(
    const c10::FunctionSchema& schema) {
  auto overload = schema.overload_name();
  overload.resize(overload.size() - std::string_view("out").size());
  if (overload.ends_with('_')) {
    overload.pop_back();
  }
  if (schema.name() == "aten::bernoulli" && overload == "float") {
    overload = "p";
  }
  return c10::Dispatcher::singleton().findSchema({schema.name(), overload});
}

// Makes the arguments of a form with out=, less the outs, those of
// `functional`, which may ask for options that the outs already have.
void put_arguments(
    const c10::FunctionSchema& schema,
    const c10::FunctionSchema& functional,
    torch::jit::Stack& stack) {
  const size_t count = schema.arguments().size() - schema.returns().size();
  const auto given = torch::jit::pop(stack, count);
  for (const auto& argument : functional.arguments()) {
    const auto index = schema.argumentIndexWithName(argument.name());
    if (index && static_cast<size_t>(*index) < count) {
      stack.push_back(given[*index]);
    } else {
      stack.push_back(argument.default_value().value_or(c10::IValue()));
    }
  }
}

// Draws as the functional form does, then writes to the out tensors.
void random_out(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const size_t count = op.schema().returns().size();
  std::vector<at::Tensor> outs;
  for (const auto& value : torch::jit::pop(*stack, count)) {
    outs.push_back(value.toTensor());
  }
  const auto functional = *functional_form(op.schema());
  put_arguments(op.schema(), functional.schema(), *stack);
  functional.callBoxed(stack);
  const auto results = torch::jit::pop(*stack, count);
  for (size_t i = 0; i < count; ++i) {
    const auto& result = results[i].toTensor();
    TORCH_CHECK_VALUE(
        is_dtensor(outs[i]) && is_dtensor(result) &&
            outs[i].sizes() == result.sizes(),
        "[",
        op.schema().name(),
        "] out is a DTensor of the result's sizes: ",
        outs[i].sizes(),
        " vs ",
        result.sizes(),
        ".");
    write_value(outs[i], result);
    stack->emplace_back(outs[i]);
  }
}

bool has_out_form(const c10::OperatorName& name) {
  constexpr std::array kNames{
      "bernoulli",
      "binomial",
      "cauchy",
      "exponential",
      "geometric",
      "log_normal",
      "multinomial",
      "native_dropout",
      "normal",
      "normal_functional",
      "poisson",
      "rand_like",
      "randint_like",
      "randn_like",
      "random",
      "_sample_dirichlet",
      "_standard_gamma",
      "uniform"};
  return name.overload_name.ends_with("out") &&
         std::ranges::any_of(kNames, [&](const char* each) {
           return name.name == std::string("aten::") + each;
         });
}

std::set<std::string> register_out_forms(torch::Library& below) {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    // normal.float_float_out is a factory.
    if (!op || !has_out_form(name) || !functional_form(op->schema()) ||
        !op->schema().arguments()[0].type()->isSubtypeOf(
            *c10::TensorType::get())) {
      continue;
    }
    const auto full = name.name + "." + name.overload_name;
    below.impl(
        full.c_str(), torch::CppFunction::makeFromBoxedFunction<&random_out>());
    names.insert(full);
  }
  return names;
}

} // namespace

std::set<std::string> register_random(
    torch::Library& above,
    torch::Library& below) {
  std::set<std::string> names;
  for (const char* name :
       {"uniform_",
        "uniform",
        "normal_",
        "normal_functional",
        "exponential_",
        "exponential",
        "geometric_",
        "geometric",
        "cauchy_",
        "cauchy",
        "log_normal_",
        "log_normal",
        "random_",
        "random",
        "random_.from",
        "random.from",
        "random_.to",
        "random.to",
        "bernoulli_.float",
        "bernoulli.p",
        "rand_like",
        "rand_like.generator",
        "randn_like",
        "randn_like.generator",
        "randint_like",
        "randint_like.generator",
        "randint_like.Tensor",
        "randint_like.Tensor_generator",
        "randint_like.low_dtype",
        "randint_like.low_generator_dtype"}) {
    below.impl(name, torch::CppFunction::makeFromBoxedFunction<&random_fill>());
    names.insert(std::string("aten::") + name);
  }
  const auto add_below = [&](const char* name, auto function) {
    below.impl(name, function);
    names.insert(std::string("aten::") + name);
  };
  add_below("bernoulli", TORCH_FN(bernoulli));
  add_below("bernoulli.Tensor", TORCH_FN(bernoulli_like));
  add_below("bernoulli_.Tensor", TORCH_FN(bernoulli_inplace));
  add_below("normal.Tensor_float", TORCH_FN(normal_of_mean));
  add_below("normal.float_Tensor", TORCH_FN(normal_of_std));
  add_below("normal.Tensor_Tensor", TORCH_FN(normal_of_both));
  add_below("poisson", TORCH_FN(poisson));
  add_below("binomial", TORCH_FN(binomial));
  add_below("_standard_gamma", TORCH_FN(standard_gamma));
  add_below("_sample_dirichlet", TORCH_FN(sample_dirichlet));
  add_below("multinomial", TORCH_FN(multinomial));
  add_below("native_dropout", TORCH_FN(native_dropout));
  add_below("rrelu_with_noise", TORCH_FN(rrelu_with_noise));
  add_below("rrelu_with_noise_", TORCH_FN(rrelu_with_noise_));
  const auto add = [&](const char* name, auto function) {
    above.impl(name, function);
    add_below(name, function);
  };
  add("dropout", TORCH_FN(dropout));
  add("dropout_", TORCH_FN(dropout_));
  add("feature_dropout", TORCH_FN(feature_dropout));
  add("feature_dropout_", TORCH_FN(feature_dropout_));
  add("alpha_dropout", TORCH_FN(alpha_dropout));
  add("alpha_dropout_", TORCH_FN(alpha_dropout_));
  add("feature_alpha_dropout", TORCH_FN(feature_alpha_dropout));
  add("feature_alpha_dropout_", TORCH_FN(feature_alpha_dropout_));
  names.merge(register_out_forms(below));
  return names;
}

} // namespace weft::dtensor::kernels
