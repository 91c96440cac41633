#include "dtensor/nn/clip_grad.h"

#include <algorithm>
#include <cmath>

#include <torch/torch.h>

#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

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

bool is_half(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

// Returns the norm of each tensor, accumulated in float32 at least, because
// half precision cannot hold the squares.
at::Tensor norms_of(const std::vector<at::Tensor>& tensors) {
  if (std::none_of(tensors.begin(), tensors.end(), is_half)) {
    return at::stack(at::_foreach_norm(tensors, 2)).to(at::kDouble);
  }
  if (std::all_of(tensors.begin(), tensors.end(), is_half)) {
    return at::stack(at::_foreach_norm(tensors, 2, at::kFloat)).to(at::kDouble);
  }
  std::vector<at::Tensor> norms;
  for (const auto& tensor : tensors) {
    norms.push_back(at::linalg_vector_norm(
        tensor,
        2,
        {},
        /*keepdim=*/false,
        at::promote_types(tensor.scalar_type(), at::kFloat)));
  }
  return at::stack(norms).to(at::kDouble);
}

} // namespace

double& GradNorm::sum_of(
    const mesh::DeviceMesh& mesh,
    const std::vector<int64_t>& cut) {
  for (auto& sum : sums_) {
    if (sum.cut == cut && sum.mesh == mesh) {
      return sum.value;
    }
  }
  return sums_.emplace_back(mesh, cut).value;
}

GradNorm::GradNorm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto locals = local_gradients(parameters);
  if (locals.empty()) {
    return;
  }
  const auto all = norms_of(locals);
  // Tensors on the meta device have no values. Zeros let the rest of the code
  // run.
  const auto norms =
      all.is_meta() ? at::zeros({all.numel()}, at::kDouble) : all.cpu();
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
          " is Partial. Finish backward (or DDP's synchronized backward) "
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
    sum_of(mesh, cut) += norm * norm;
  }
}

bool GradNorm::is_finite() const {
  return std::all_of(sums_.begin(), sums_.end(), [](const auto& sum) {
    return std::isfinite(sum.value);
  });
}

double GradNorm::all_reduce() const {
  return all_reduce(mesh::DeviceMesh(), at::empty({0}, at::kDouble));
}

double GradNorm::all_reduce(
    const mesh::DeviceMesh& line,
    const at::Tensor& extra_sums) const {
  const at::NoGradGuard no_grad;
  bool is_waiting = extra_sums.numel() > 0;
  double total = 0;
  for (const auto& sum : sums_) {
    auto value = at::full({1}, sum.value, at::kDouble);
    const bool rides = is_waiting && sum.cut.size() == 1 &&
                       sum.mesh.group(sum.cut.front()).ranks() == line.ranks();
    if (rides) {
      value = at::cat({value, extra_sums});
      is_waiting = false;
    }
    for (const int64_t i : sum.cut) {
      if (sum.mesh.size(i) > 1) {
        sum.mesh.group(i)
            .all_reduce(value, mesh::ReduceOp::kSum, "grad_norm")
            .wait();
      }
    }
    total += value[0].item<double>();
    if (rides) {
      extra_sums.copy_(value.narrow(0, 1, extra_sums.numel()));
    }
  }
  if (is_waiting && line.size() > 1) {
    line.group(int64_t{0})
        .all_reduce(extra_sums, mesh::ReduceOp::kSum, "grad_norm")
        .wait();
  }
  return std::sqrt(total);
}

double grad_norm(const std::vector<at::Tensor>& parameters) {
  return GradNorm(parameters).all_reduce();
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
