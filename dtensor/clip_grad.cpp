#include "dtensor/clip_grad.h"

#include <cmath>

#include <torch/torch.h>

#include "dtensor/copied_view.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"

namespace weft::dtensor {
namespace {

std::vector<at::Tensor> local_gradients(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> locals;
  for (const auto& parameter : parameters) {
    const auto& grad = parameter.grad();
    if (grad.defined()) {
      const auto* impl = dtensor_impl(grad);
      locals.push_back(impl ? impl->local() : grad);
    }
  }
  return locals;
}

// The sum of squares of the gradients that are cut over the same dims of the
// same mesh; over no dims it needs no reduction.
struct SumOfSquares {
  mesh::DeviceMesh mesh;
  std::vector<int64_t> cut;
  double value = 0;
};

double& sum_of(
    std::vector<SumOfSquares>& sums,
    const mesh::DeviceMesh& mesh,
    const std::vector<int64_t>& cut) {
  for (auto& sum : sums) {
    if (sum.cut == cut && sum.mesh == mesh) {
      return sum.value;
    }
  }
  return sums.emplace_back(mesh, cut).value;
}

} // namespace

double grad_norm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto locals = local_gradients(parameters);
  if (locals.empty()) {
    return 0.0;
  }
  const auto all = at::stack(at::_foreach_norm(locals, 2)).to(at::kDouble);
  // On the meta device there are none: what follows only has to be done.
  const auto norms =
      all.is_meta() ? at::zeros({all.numel()}, at::kDouble) : all.cpu();
  std::vector<SumOfSquares> sums;
  size_t next = 0;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) {
      continue;
    }
    const double norm = norms[static_cast<int64_t>(next++)].item<double>();
    std::vector<int64_t> cut;
    mesh::DeviceMesh mesh;
    if (const auto* impl = dtensor_impl(parameter.grad())) {
      TORCH_CHECK_VALUE(
          !impl->spec().has_partial(),
          "[grad_norm] the gradient of ",
          describe(parameter),
          " is a pending sum. Finish backward (or DDP's synced backward) "
          "first.");
      for (int64_t i = 0; i < impl->spec().mesh_ndim(); ++i) {
        if (impl->spec().placement(i).is_shard()) {
          cut.push_back(i);
        }
      }
      if (!cut.empty()) {
        mesh = impl->spec().mesh();
      }
    }
    sum_of(sums, mesh, cut) += norm * norm;
  }
  double total = 0;
  for (const auto& sum : sums) {
    auto value = at::full({1}, sum.value, at::kDouble);
    for (const int64_t i : sum.cut) {
      sum.mesh.group(i)
          .all_reduce(value, mesh::ReduceOp::kSum, "grad_norm")
          .wait();
    }
    total += value.item<double>();
  }
  return std::sqrt(total);
}

void clip_grads_with_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double total_norm) {
  const double scale = max_norm / (total_norm + 1e-6);
  if (std::isfinite(total_norm) && scale < 1.0) {
    const at::NoGradGuard no_grad;
    auto locals = local_gradients(parameters);
    at::_foreach_mul_(locals, scale);
    for (const auto& parameter : parameters) {
      note_write(parameter.grad(), "clip_grads_with_norm_");
    }
  }
}

double clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm) {
  const double norm = grad_norm(parameters);
  clip_grads_with_norm_(parameters, max_norm, norm);
  return norm;
}

} // namespace weft::dtensor
