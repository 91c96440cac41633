#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/random_ops.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor::kernels {

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
  return names;
}

} // namespace weft::dtensor::kernels
