#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dtensor/random/random_state.h"
#include "dtensor/spec/spec.h"

namespace torch {
class Library;
} // namespace torch

namespace weft::dtensor::kernels {

/// Registers the kernels below. Returns their full names.
std::set<std::string> register_random(
    torch::Library& above,
    torch::Library& below);

/// Registers the out= overloads of random ops and of some others
/// (out_forms.cpp). Returns their full names.
std::set<std::string> register_out_forms(torch::Library& below);

/// The distribution from which the elements of a tensor are drawn.
struct Draw {
  enum class Kind {
    kUniform,
    kNormal,
    kBernoulli,
    kExponential,
    kGeometric,
    kCauchy,
    kLogNormal,
    kIntegers
  };
  Kind kind;
  /// The parameters. uniform: from, to. normal and log_normal: mean, std.
  /// bernoulli and geometric: p. exponential: lambda. cauchy: median, sigma.
  double a = 0;
  double b = 0;
  /// For integers: [from, from + range). Range 0 means 2^64.
  int64_t from = 0;
  uint64_t range = 0;
};

/// Fills this rank's part, a plain tensor of any dtype and strides.
void fill_part(const at::Tensor& local, const RandomPart& part, const Draw&);

/// Returns a new DTensor of `sizes` with the placements of `spec`, Partial
/// replaced by Replicate, and draws the mesh's next random numbers.
at::Tensor draw_dtensor(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    const at::TensorOptions& options,
    const Draw& draw);

/// Writes `value` into a DTensor of the same sizes, which keeps its placement.
void write_value(const at::Tensor& self, const at::Tensor& value);

/// Throws: c10::ValueError if a generator was passed.
void check_no_generator(
    std::string_view op,
    const std::optional<at::Generator>& generator);

/// The kernel of ops that fill a tensor with numbers of one distribution:
/// uniform_, bernoulli_, rand_like, ...
void random_fill(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// Below autograd: draws that depend on the values of tensors.
at::Tensor bernoulli(const at::Tensor& p, std::optional<at::Generator>);
at::Tensor bernoulli_like(
    const at::Tensor& self,
    const at::Tensor& p,
    std::optional<at::Generator>);
at::Tensor& bernoulli_inplace(
    at::Tensor& self,
    const at::Tensor& p,
    std::optional<at::Generator>);
at::Tensor normal_of_mean(
    const at::Tensor& mean,
    double std,
    std::optional<at::Generator>);
at::Tensor
normal_of_std(double mean, const at::Tensor& std, std::optional<at::Generator>);
at::Tensor normal_of_both(
    const at::Tensor& mean,
    const at::Tensor& std,
    std::optional<at::Generator>);
at::Tensor poisson(const at::Tensor& rate, std::optional<at::Generator>);
at::Tensor binomial(
    const at::Tensor& count,
    const at::Tensor& probability,
    std::optional<at::Generator>);
at::Tensor standard_gamma(
    const at::Tensor& alpha,
    std::optional<at::Generator>);
at::Tensor sample_dirichlet(
    const at::Tensor& alpha,
    std::optional<at::Generator>);
at::Tensor multinomial(
    const at::Tensor& weights,
    c10::SymInt num_samples,
    bool replacement,
    std::optional<at::Generator>);

// Dropout and its kin.
std::tuple<at::Tensor, at::Tensor>
native_dropout(const at::Tensor& input, double p, std::optional<bool> train);
at::Tensor dropout(const at::Tensor& input, double p, bool train);
at::Tensor feature_dropout(const at::Tensor& input, double p, bool train);
at::Tensor alpha_dropout(const at::Tensor& input, double p, bool train);
at::Tensor feature_alpha_dropout(const at::Tensor& input, double p, bool train);
at::Tensor& dropout_(at::Tensor& input, double p, bool train);
at::Tensor& feature_dropout_(at::Tensor& input, double p, bool train);
at::Tensor& alpha_dropout_(at::Tensor& input, double p, bool train);
at::Tensor& feature_alpha_dropout_(at::Tensor& input, double p, bool train);
at::Tensor rrelu_with_noise(
    const at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    std::optional<at::Generator>);
at::Tensor& rrelu_with_noise_(
    at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    std::optional<at::Generator>);

} // namespace weft::dtensor::kernels
