#include "dtensor/init/factories.h"

#include <functional>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/gradient.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

// The properties of a new tensor that are known before its values are computed.
struct Blueprint {
  const char* op;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
  DTensorSpec target;
  // The target with Partial replaced by Replicate. Values are computed with it.
  DTensorSpec whole;
};

Blueprint make_blueprint(
    const char* op,
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  WEFT_CHECK(
      spec.mesh_ndim() != 0,
      op,
      mesh::ErrorContext{spec.mesh().describe_rank()},
      "the mesh has no dims. Give a mesh and one placement for each of its "
      "dims.");
  Placements placements;
  for (const auto& placement : spec.placements()) {
    placements.push_back(
        placement.normalized(static_cast<int64_t>(sizes.size())));
  }
  const auto target = fitted(spec.with(placements), sizes);
  return {
      op,
      sizes.vec(),
      options.has_device() ? options
                           : options.device(spec.mesh().world().device()),
      target,
      target.without_partial()};
}

// Calls make(local sizes, options) for this rank's part and returns the
// DTensor.
at::Tensor build(
    const Blueprint& print,
    const std::function<at::Tensor(c10::IntArrayRef, const at::TensorOptions&)>&
        make) {
  const at::NoGradGuard no_grad;
  // In DeferredInit, the tensors created here must not be deferred.
  const c10::impl::ExcludeDispatchKeyGuard at_once(
      c10::DispatchKey::DeferredInit);
  const auto options = print.options.requires_grad(std::nullopt);
  auto local = make(local_sizes(print.whole, print.sizes), options);
  local = redistribute_local(
      local, print.sizes, print.whole, print.target, print.op);
  auto result = from_local_impl(
      local,
      print.target,
      print.sizes,
      row_major_strides(print.sizes),
      print.op);
  result.set_requires_grad(print.options.requires_grad());
  match_gradient_placement(result);
  return result;
}

// Returns the indices of a 1-D tensor that this rank holds: [local], int64.
at::Tensor positions(const Blueprint& print) {
  std::vector<at::Tensor> pieces{
      at::empty({0}, at::dtype(at::kLong).device(print.options.device()))};
  const auto ranges = local_ranges(print.whole, print.sizes);
  for (const auto& range : ranges.at(0)) {
    pieces.push_back(at::arange(
        range.begin, range.begin + range.length, pieces[0].options()));
  }
  return at::cat(pieces);
}

// Fills a tensor with Replicate in place of Partial, and then redistributes it
// to the target. So the random values do not depend on Partial placements.
at::Tensor fill_random(
    const Blueprint& print,
    const std::function<void(at::Tensor&)>& fill) {
  const at::NoGradGuard no_grad;
  auto whole = empty(
      print.sizes, print.options.requires_grad(std::nullopt), print.whole);
  fill(whole);
  auto result = redistribute(whole, print.target.placements());
  result.set_requires_grad(print.options.requires_grad());
  match_gradient_placement(result);
  return result;
}

// Returns the elements at `index` of `steps` numbers from start to end,
// computed in double by libtorch's formula.
at::Tensor
line(const at::Tensor& index, double start, double end, int64_t steps) {
  const double step =
      steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  const auto i = index.to(at::kDouble);
  return at::where(
      index < steps / 2 + (steps == 1 ? 1 : 0),
      i * step + start,
      (i - static_cast<double>(steps - 1)) * step + end);
}

void check_real(const Blueprint& print) {
  WEFT_CHECK(
      !at::isComplexType(c10::typeMetaToScalarType(print.options.dtype())),
      print.op,
      mesh::ErrorContext{print.target.mesh().describe_rank()},
      "complex dtypes are not supported. Use a real one.");
}

} // namespace

at::Tensor empty(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return build(
      make_blueprint("empty", sizes, options, spec),
      [](auto local, const auto& local_options) {
        return at::empty(local, local_options);
      });
}

at::Tensor zeros(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return build(
      make_blueprint("zeros", sizes, options, spec),
      [](auto local, const auto& local_options) {
        return at::zeros(local, local_options);
      });
}

at::Tensor ones(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return build(
      make_blueprint("ones", sizes, options, spec),
      [](auto local, const auto& local_options) {
        return at::ones(local, local_options);
      });
}

at::Tensor full(
    c10::IntArrayRef sizes,
    const at::Scalar& value,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return build(
      make_blueprint("full", sizes, options, spec),
      [&](auto local, const auto& local_options) {
        return at::full(local, value, local_options);
      });
}

at::Tensor rand(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return fill_random(
      make_blueprint("rand", sizes, options, spec),
      [](at::Tensor& whole) { whole.uniform_(); });
}

at::Tensor randn(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return fill_random(
      make_blueprint("randn", sizes, options, spec),
      [](at::Tensor& whole) { whole.normal_(); });
}

at::Tensor arange(
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  // A meta tensor gives libtorch's sizes, dtype and argument errors without
  // allocating memory.
  const auto meta = at::arange(start, end, step, options.device(at::kMeta));
  const auto print =
      make_blueprint("arange", meta.sizes(), options.dtype(meta.dtype()), spec);
  check_real(print);
  return build(print, [&](auto, const auto& local_options) {
    const auto index = positions(print);
    const bool integers = at::isIntegralType(meta.scalar_type(), true);
    const auto values =
        integers
            ? index * step.to<int64_t>() + start.to<int64_t>()
            : index.to(at::kDouble) * step.to<double>() + start.to<double>();
    return values.to(local_options);
  });
}

at::Tensor arange(
    const at::Scalar& end,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  return arange(0, end, 1, options, spec);
}

at::Tensor linspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  const auto meta = at::linspace(start, end, steps, options.device(at::kMeta));
  const auto print = make_blueprint(
      "linspace", meta.sizes(), options.dtype(meta.dtype()), spec);
  check_real(print);
  return build(print, [&](auto, const auto& local_options) {
    return line(positions(print), start.to<double>(), end.to<double>(), steps)
        .to(local_options);
  });
}

at::Tensor logspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    double base,
    const at::TensorOptions& options,
    const DTensorSpec& spec) {
  const auto meta =
      at::logspace(start, end, steps, base, options.device(at::kMeta));
  const auto print = make_blueprint(
      "logspace", meta.sizes(), options.dtype(meta.dtype()), spec);
  check_real(print);
  return build(print, [&](auto, const auto& local_options) {
    const auto exponents =
        line(positions(print), start.to<double>(), end.to<double>(), steps);
    return at::pow(base, exponents).to(local_options);
  });
}

} // namespace weft::dtensor
