#include "dtensor/kernels/row_statistics.h"

#include <limits>

#include <torch/torch.h>

namespace weft::dtensor::kernels {
namespace {

// Returns the maximum that is subtracted from the numbers of a row. It returns
// a finite number for -inf, so that the exponentials of a row of -inf are 0 and
// not NaN.
at::Tensor finite(const at::Tensor& maximum) {
  return maximum.clamp_min(
      maximum.scalar_type() == at::kDouble
          ? std::numeric_limits<double>::lowest()
          : std::numeric_limits<float>::lowest());
}

} // namespace

at::Tensor precise(const at::Tensor& tensor) {
  return tensor.to(at::promote_types(tensor.scalar_type(), at::kFloat));
}

RowStatistics::RowStatistics(
    const at::Tensor& x,
    int64_t dim,
    int64_t count,
    int64_t extra)
    : rows(x.sizes().vec()), count(count) {
  rows.erase(rows.begin() + dim);
  buffer = at::empty(
      {count * row_count() + extra},
      x.options().dtype(at::promote_types(x.scalar_type(), at::kFloat)));
}

int64_t RowStatistics::row_count() const {
  return c10::multiply_integers(rows);
}

at::Tensor RowStatistics::operator[](int64_t i) const {
  return buffer.narrow(0, i * row_count(), row_count()).view(rows);
}

at::Tensor RowStatistics::extra() const {
  return buffer.select(0, count * row_count());
}

void RowStatistics::set_exponentials(const at::Tensor& x, int64_t dim) {
  if (x.size(dim) == 0) {
    (*this)[0].fill_(-std::numeric_limits<double>::infinity());
    (*this)[1].zero_();
    return;
  }
  const auto maximum = x.amax(dim);
  (*this)[0].copy_(maximum);
  const auto shift = finite(maximum).unsqueeze(dim);
  (*this)[1].copy_((x - shift).exp_().sum(dim));
}

void RowStatistics::combine(const std::vector<mesh::Communicator*>& groups) {
  for (auto* group : groups) {
    combine(*group);
  }
}

void RowStatistics::combine(mesh::Communicator& group) {
  const int64_t n = row_count();
  const auto all = at::empty({group.size(), buffer.numel()}, buffer.options());
  group.all_gather(all, buffer, "cross_entropy").wait();
  const auto maxima = all.narrow(1, 0, n);
  const auto maximum = maxima.amax(0);
  all.narrow(1, n, n).mul_((maxima - finite(maximum)).exp_());
  buffer = all.sum(0);
  buffer.narrow(0, 0, n).copy_(maximum);
}

at::Tensor RowStatistics::log_sum() const {
  return (*this)[1].log().add_((*this)[0]);
}

void refuse_second_derivative(const torch::autograd::variable_list& grads) {
  for (const auto& grad : grads) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grad.defined() || !grad.requires_grad(),
        "[cross_entropy] second derivatives are not supported with a sharded "
        "class dim or a z_loss. Redistribute the logits to Replicate first, "
        "and leave the z_loss out.");
  }
}

} // namespace weft::dtensor::kernels
