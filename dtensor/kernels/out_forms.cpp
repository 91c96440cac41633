// Overloads with out= that call the functional op and copy its results to the
// out tensors.

#include <algorithm>
#include <array>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/random_ops.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor::kernels {
namespace {

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

// Replaces the arguments of an overload with out=, without the out tensors, by
// those of `functional`. Its options (dtype, ...) get their defaults.
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

void run_functional_form(
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

// Returns true for overloads of random ops, which must draw the same numbers as
// the functional ops, and for overloads that libtorch would compose of views of
// their out tensor.
bool runs_functional_form(const c10::OperatorName& name) {
  constexpr std::array kNames{
      "adaptive_avg_pool1d",
      "avg_pool1d",
      "bernoulli",
      "binomial",
      "cauchy",
      "exponential",
      "geometric",
      "linear",
      "log_normal",
      "matmul",
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

} // namespace

std::set<std::string> register_out_forms(torch::Library& below) {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    // normal.float_float_out has no DTensor argument but the out tensor: it is
    // a factory.
    if (!op || name.overload_name == "float_float_out" ||
        !runs_functional_form(name) || !functional_form(op->schema())) {
      continue;
    }
    const auto full = name.name + "." + name.overload_name;
    below.impl(
        full.c_str(),
        torch::CppFunction::makeFromBoxedFunction<&run_functional_form>());
    names.insert(full);
  }
  return names;
}

} // namespace weft::dtensor::kernels
