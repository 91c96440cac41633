#include "dtensor/kernels/row_loss.h"

#include <optional>

#include <torch/torch.h>

#include "dtensor/kernels/row_statistics.h"

// Note [Loss parallel]
// ~~~~~~~~~~~~~~~~~~~~
// For each row, each rank computes the max m_r of its logits x, the sum s_r of
// exp(x - m_r), and the target's logit t_r, which is 0 if another rank has that
// class. One all_gather of (m_r, s_r, t_r) gives every rank
//   m = max_r m_r,  L = log(sum_r s_r exp(m_r - m)) + m,  loss = L - sum_r t_r,
// added in rank order, so equal on all ranks. With class weights w and
// smoothing e, ranks also send the target's weight and sum_c w_c x_c:
//   loss = ((1 - e) w_y + e/C W) L - (1 - e) w_y x_y - e/C sum_c w_c x_c
// with W = sum_c w_c, which is one number for all rows. If several mesh dims
// shard the classes, a rank sends the combined numbers of one group to the
// group of the next mesh dim.
// The gradient of a logit is d loss/dL exp(x - L) minus the coefficient of that
// logit in the loss. A rank has all of these numbers, so backward does not
// communicate.
// Source: Megatron-LM's vocab-parallel cross entropy;
// torch/distributed/tensor/parallel/loss.py.

namespace weft::dtensor::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns a view of one number per class that broadcasts to logits of `ndim`
// dims.
at::Tensor
beside_classes(const at::Tensor& numbers, int64_t dim, int64_t ndim) {
  std::vector<int64_t> sizes(ndim, 1);
  sizes[dim] = numbers.numel();
  return numbers.view(sizes);
}

// The positions of the targets among this rank's classes.
struct TargetColumns {
  at::Tensor ignored;
  /// True if the class is on another rank, or the row is ignored.
  at::Tensor elsewhere;
  /// The position of the class on this rank. 0 if `elsewhere` is true.
  at::Tensor column;

  TargetColumns(const at::Tensor& target, int64_t here, const ClassPart& part)
      : ignored(target.eq(part.ignore_index)) {
    const auto found = find(target.to(at::kLong), part);
    elsewhere = found.lt(0).logical_or_(found.ge(here)).logical_or_(ignored);
    column = found.masked_fill(elsewhere, 0);
  }

 private:
  static at::Tensor find(const at::Tensor& target, const ClassPart& part) {
    if (part.ranges.size() == 1) {
      return target - part.ranges[0].begin;
    }
    auto columns = at::full({part.classes}, -1, at::kLong);
    int64_t next = 0;
    for (const auto& range : part.ranges) {
      columns.narrow(0, range.begin, range.length)
          .copy_(at::arange(next, next + range.length, at::kLong));
      next += range.length;
    }
    return columns.to(target.device()).take(target.clamp(0, part.classes - 1));
  }
};

at::Tensor scaled_softmax(
    const at::Tensor& logits,
    const at::Tensor& log_sum,
    const at::Tensor& scale,
    int64_t dim) {
  return (logits - log_sum.unsqueeze(dim)).exp_().mul_(scale.unsqueeze(dim));
}

at::Tensor added(const at::Tensor& a, const at::Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

struct ClassTargetLoss : torch::autograd::Function<ClassTargetLoss> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& target,
      const std::optional<at::Tensor>& class_weight,
      const ClassPart& part) {
    const auto x = precise(logits);
    const auto weight = class_weight.value_or(at::Tensor());
    const bool weighted = weight.defined();
    const bool smoothed = part.label_smoothing != 0;
    const TargetColumns at(target, x.size(part.dim), part);
    auto known = collect(x, at, weight, part);
    const auto log_sum = known.log_sum();

    // loss = slope * log_sum - offset. See Note [Loss parallel].
    const double kept = 1 - part.label_smoothing;
    const double share =
        part.label_smoothing / static_cast<double>(part.classes);
    const auto counts = weighted ? known[3].clone()
                                 : at.ignored.logical_not().to(x.scalar_type());
    auto slope = counts;
    auto offset = known[2];
    if (weighted) {
      offset = offset * counts;
    }
    if (smoothed) {
      offset = offset * kept + known[known.count - 1] * share;
      slope = weighted ? slope * kept + known.extra() * share
                       : at::ones_like(slope);
    }
    auto loss = weighted || smoothed ? slope * log_sum : log_sum.clone();
    loss.sub_(offset).masked_fill_(at.ignored, 0);

    context->set_materialize_grads(false);
    context->mark_non_differentiable({counts});
    context->saved_data["dim"] = part.dim;
    context->saved_data["kept"] = kept;
    context->saved_data["share"] = share;
    context->save_for_backward(
        {logits,
         log_sum,
         at.column,
         at.elsewhere,
         at.ignored,
         weighted || smoothed ? slope : at::Tensor(),
         weighted ? counts : at::Tensor(),
         weighted && smoothed ? weight : at::Tensor()});
    return {loss, log_sum, counts};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    refuse_second_derivative(grads);
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const auto& log_sum = saved[1];
    const int64_t dim = context->saved_data["dim"].toInt();
    const double kept = context->saved_data["kept"].toDouble();
    const double share = context->saved_data["share"].toDouble();
    at::Tensor loss_grad;
    if (grads[0].defined()) {
      loss_grad = grads[0].masked_fill(saved[4], 0);
    }
    const bool has_slope = saved[5].defined() && loss_grad.defined();
    const auto scale =
        added(has_slope ? loss_grad * saved[5] : loss_grad, grads[1]);
    if (!scale.defined()) {
      return variable_list(4);
    }
    auto grad = scaled_softmax(logits, log_sum, scale, dim);
    if (loss_grad.defined() && grad.size(dim) != 0) {
      auto picked = loss_grad.masked_fill(saved[3], 0).mul_(-kept);
      if (saved[6].defined()) {
        picked.mul_(saved[6]);
      }
      grad.scatter_add_(dim, saved[2].unsqueeze(dim), picked.unsqueeze(dim));
      if (share != 0) {
        const auto rows = (loss_grad * share).unsqueeze(dim);
        grad.sub_(
            saved[7].defined()
                ? rows * beside_classes(saved[7], dim, grad.dim())
                : rows);
      }
    }
    return {
        grad.to(logits.scalar_type()),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }

 private:
  // Returns for each row m, s and x_y, then w_y if there are class weights,
  // then sum_c w_c x_c if there is smoothing. extra() is W if there are both.
  static RowStatistics collect(
      const at::Tensor& x,
      const TargetColumns& at,
      const at::Tensor& weight,
      const ClassPart& part) {
    const bool weighted = weight.defined();
    const bool smoothed = part.label_smoothing != 0;
    RowStatistics known(
        x, part.dim, 3 + weighted + smoothed, weighted && smoothed);
    known.set_exponentials(x, part.dim);
    if (x.size(part.dim) == 0) {
      known[2].zero_();
      if (weighted) {
        known[3].zero_();
      }
    } else {
      known[2].copy_(x.gather(part.dim, at.column.unsqueeze(part.dim))
                         .squeeze(part.dim)
                         .masked_fill_(at.elsewhere, 0));
      if (weighted) {
        known[3].copy_(weight.take(at.column).masked_fill_(at.elsewhere, 0));
      }
    }
    if (smoothed) {
      known[known.count - 1].copy_(
          (weighted ? x * beside_classes(weight, part.dim, x.dim()) : x)
              .sum(part.dim));
    }
    if (weighted && smoothed) {
      known.extra().copy_(weight.sum());
    }
    known.combine(part.groups);
    return known;
  }
};

// The loss for targets that are probabilities q: loss = L sum_c v_c - sum_c v_c
// x_c, with v_c = w_c ((1 - e) q_c + e/C).
struct ProbabilityLoss : torch::autograd::Function<ProbabilityLoss> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& target,
      const std::optional<at::Tensor>& class_weight,
      const ClassPart& part) {
    const auto x = precise(logits);
    const auto weight = class_weight.value_or(at::Tensor());
    const auto v = weights(x, target, weight, part.label_smoothing, part);
    RowStatistics known(x, part.dim, 4, 0);
    known.set_exponentials(x, part.dim);
    known[2].copy_((x * v).sum(part.dim));
    known[3].copy_(v.sum(part.dim));
    known.combine(part.groups);
    const auto log_sum = known.log_sum();
    const auto slope = known[3].clone();
    const auto counts = at::ones_like(log_sum);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({counts});
    context->saved_data["dim"] = part.dim;
    context->saved_data["classes"] = part.classes;
    context->saved_data["smoothing"] = part.label_smoothing;
    context->save_for_backward({logits, target, weight, log_sum, slope});
    return {(slope * log_sum).sub_(known[2]), log_sum, counts};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    refuse_second_derivative(grads);
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const auto& target = saved[1];
    ClassPart part;
    part.dim = context->saved_data["dim"].toInt();
    part.classes = context->saved_data["classes"].toInt();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const auto& loss_grad = grads[0];
    const auto scale =
        added(loss_grad.defined() ? loss_grad * saved[4] : loss_grad, grads[1]);
    variable_list results(4);
    if (scale.defined() && context->needs_input_grad(0)) {
      auto grad = scaled_softmax(logits, saved[3], scale, part.dim);
      if (loss_grad.defined()) {
        grad.sub_(weights(grad, target, saved[2], smoothing, part)
                      .mul_(loss_grad.unsqueeze(part.dim)));
      }
      results[0] = grad.to(logits.scalar_type());
    }
    if (loss_grad.defined() && context->needs_input_grad(1)) {
      auto grad = (saved[3].unsqueeze(part.dim) - logits)
                      .mul_(loss_grad.unsqueeze(part.dim) * (1 - smoothing));
      if (saved[2].defined()) {
        grad.mul_(beside_classes(saved[2], part.dim, grad.dim()));
      }
      results[1] = grad.to(target.scalar_type());
    }
    return results;
  }

 private:
  // Returns v as a new tensor in the dtype of `like`.
  static at::Tensor weights(
      const at::Tensor& like,
      const at::Tensor& target,
      const at::Tensor& weight,
      double smoothing,
      const ClassPart& part) {
    auto v = target.to(like.scalar_type()) * (1 - smoothing);
    if (smoothing != 0) {
      v.add_(smoothing / static_cast<double>(part.classes));
    }
    return weight.defined()
               ? v.mul_(beside_classes(weight, part.dim, like.dim()))
               : v;
  }
};

} // namespace

RowLosses row_losses(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const ClassPart& part) {
  // Function::apply() asks every tensor for its device, which an undefined
  // tensor does not have. Therefore the weight is passed as an optional.
  std::optional<at::Tensor> own_weight;
  if (weight.defined()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !weight.requires_grad() || !at::GradMode::is_enabled(),
        "[cross_entropy] class weights have no gradient with a sharded class "
        "dim or a z_loss. Pass weight.detach().");
    own_weight = weight.to(at::promote_types(logits.scalar_type(), at::kFloat));
  }
  const auto numbers =
      target.is_floating_point()
          ? ProbabilityLoss::apply(logits, target, own_weight, part)
          : ClassTargetLoss::apply(logits, target, own_weight, part);
  return {numbers[0], numbers[1], numbers[2]};
}

} // namespace weft::dtensor::kernels
