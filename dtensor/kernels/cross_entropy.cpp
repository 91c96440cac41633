// Cross entropy of class logits. With the class dim cut over one mesh dim
// (loss parallel) the logits are never gathered: each rank sends three numbers
// a row.
// Source: Megatron-LM's vocab-parallel cross entropy;
// torch/distributed/tensor/parallel/loss.py.

#include <limits>

#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"
#include "mesh/communicator.h"

namespace weft::dtensor::kernels {
namespace {

constexpr const char* kLossName = "cross_entropy";

struct ClassShard {
  mesh::Communicator* group;
  int64_t begin;
  int64_t ignore_index;
};

// Loss of each row from the classes [begin, begin + local.size(1)) here and
// the others elsewhere; 0 where the target is to be ignored.
//
// Note [Loss parallel]
// ~~~~~~~~~~~~~~~~~~~~
// Each rank knows, for each row, the max m_r of its logits, the sum s_r of
// exp(logit - m_r) and the target's logit t_r if it has that class, else 0.
// One all_gather of (m_r, s_r, t_r) gives every rank
//   m = max_r m_r,  loss = log(sum_r s_r exp(m_r - m)) + m - sum_r t_r,
// added in rank order, so equal on all ranks. The gradient of a logit is
// exp(logit - logsumexp) minus one at the target.
struct ShardedRowLoss : torch::autograd::Function<ShardedRowLoss> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& target,
      const ClassShard& shard) {
    const auto x =
        logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
    const int64_t classes = x.size(1);
    const auto ignored = target.eq(shard.ignore_index);
    const auto column = target - shard.begin;
    const auto elsewhere =
        column.lt(0).logical_or_(column.ge(classes)).logical_or_(ignored);
    const auto safe_column = column.masked_fill(elsewhere, 0).unsqueeze(1);

    auto statistics = at::empty({3, x.size(0)}, x.options());
    if (classes == 0) {
      statistics[0].fill_(-std::numeric_limits<double>::infinity());
      statistics.narrow(0, 1, 2).zero_();
    } else {
      const auto maximum = x.amax(1);
      statistics[0].copy_(maximum);
      statistics[1].copy_((x - maximum.unsqueeze(1)).exp_().sum(1));
      statistics[2].copy_(
          x.gather(1, safe_column).squeeze(1).masked_fill_(elsewhere, 0));
    }
    auto all =
        at::empty({shard.group->size(), 3, x.size(0)}, statistics.options());
    shard.group->all_gather(all, statistics, kLossName).wait();
    const auto maximum = all.select(1, 0).amax(0);
    const auto sum =
        (all.select(1, 1) * (all.select(1, 0) - maximum).exp_()).sum(0);
    const auto log_sum = sum.log_().add_(maximum);
    auto loss = log_sum - all.select(1, 2).sum(0);
    loss.masked_fill_(ignored, 0);
    context->save_for_backward(
        {logits, log_sum, safe_column, elsewhere, ignored});
    return loss;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const auto& log_sum = saved[1];
    const auto& column = saved[2];
    const auto& elsewhere = saved[3];
    const auto& ignored = saved[4];
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads[0].requires_grad(),
        "[cross_entropy] a second derivative does not exist with the class dim "
        "cut. Redistribute the logits to R first.");
    auto grad = (logits - log_sum.unsqueeze(1)).exp_();
    if (grad.size(1) != 0) {
      const auto here = elsewhere.logical_not().to(grad.scalar_type());
      grad.scatter_add_(1, column, here.neg().unsqueeze(1));
    }
    grad.mul_(grads[0].masked_fill(ignored, 0).unsqueeze(1));
    return {grad.to(logits.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

void check_targets(
    const at::Tensor& target,
    int64_t classes,
    int64_t ignore_index) {
  if (target.device().is_cpu()) {
    const auto wrong = target.lt(0)
                           .logical_or_(target.ge(classes))
                           .logical_and_(target.ne(ignore_index));
    TORCH_CHECK_INDEX(
        !wrong.any().item<bool>(),
        "[cross_entropy] target < number of classes: ",
        target.masked_select(wrong)[0].item<int64_t>(),
        " vs ",
        classes,
        ".");
  }
}

// Sums rows that lie as `rows` say (cut over batch mesh dims, or whole).
at::Tensor reduce_rows(
    const at::Tensor& row_loss,
    const at::Tensor& weights,
    const DTensorSpec& rows,
    int64_t reduction) {
  Placements placements;
  for (const auto& placement : rows.placements()) {
    placements.push_back(placement.is_shard() ? Partial() : Replicate());
  }
  const auto spec = rows.with(placements);
  auto total = leave_local(row_loss.sum(), spec, {}, {}, kLossName);
  if (reduction == at::Reduction::Sum) {
    return total;
  }
  auto count = leave_local(
      weights.sum().to(row_loss.scalar_type()), spec, {}, {}, kLossName);
  return redistribute_to(total, spec.without_partial(), kLossName) /
         redistribute_to(count, spec.without_partial(), kLossName);
}

} // namespace

at::Tensor cross_entropy_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    c10::SymInt ignore_index,
    double label_smoothing) {
  const auto common = common_spec({&logits, &target});
  check_operands("cross_entropy", common, {logits, target, weight});
  const auto x = place(logits, common);
  const bool plain_rows = x.dim() == 2 && label_smoothing == 0.0 &&
                          !(weight && weight->defined()) &&
                          !target.is_floating_point();
  const int64_t ignored = ignore_index.expect_int();

  // Rows may stay cut over any mesh dim, classes over one.
  int64_t class_mesh_dim = -1;
  Placements wanted;
  Placements rows;
  for (int64_t i = 0; i < common.mesh_ndim(); ++i) {
    const auto& placement = spec_of(x).placement(i);
    if (plain_rows && placement.is_shard(0)) {
      wanted.push_back(placement);
      rows.push_back(placement);
    } else if (
        plain_rows && placement.is_shard(1) && !placement.is_strided() &&
        class_mesh_dim < 0 && common.mesh().size(i) > 1) {
      class_mesh_dim = i;
      wanted.push_back(placement);
      rows.push_back(Replicate());
    } else {
      wanted.push_back(Replicate());
      rows.push_back(Replicate());
    }
  }
  const auto row_spec = common.with(rows);
  const auto input_spec = common.with(wanted);
  const auto t_local =
      enter_local(place(target, common), row_spec, rows, kLossName);
  // Half and bfloat16 losses are computed and returned in float, however the
  // logits are cut: a sum over many tokens needs it.
  const auto x_local = enter_local(x, input_spec, wanted, kLossName);
  const auto precise = [&] {
    return x_local.to(at::promote_types(x.scalar_type(), at::kFloat));
  };

  if (!plain_rows) {
    std::optional<at::Tensor> w_local;
    if (weight && weight->defined()) {
      w_local = enter_local(place(*weight, common), row_spec, rows, kLossName);
    }
    auto loss = at::cross_entropy_loss(
        precise(), t_local, w_local, reduction, ignored, label_smoothing);
    return leave_local(loss, row_spec, loss.sizes(), loss.strides(), kLossName);
  }
  at::Tensor row_loss;
  if (class_mesh_dim >= 0) {
    const auto classes = local_ranges(input_spec, x.sizes())[1];
    check_targets(t_local, x.size(1), ignored);
    row_loss = ShardedRowLoss::apply(
        x_local,
        t_local,
        ClassShard{
            &common.mesh().group(class_mesh_dim), classes[0].begin, ignored});
  } else if (reduction != at::Reduction::None && !row_spec.has_shard()) {
    auto loss =
        at::cross_entropy_loss(precise(), t_local, {}, reduction, ignored);
    return leave_local(loss, row_spec, {}, {}, kLossName);
  } else {
    row_loss = at::cross_entropy_loss(
        precise(), t_local, {}, at::Reduction::None, ignored);
  }
  if (reduction == at::Reduction::None) {
    return leave_local(row_loss, row_spec, {x.size(0)}, {1}, kLossName);
  }
  return reduce_rows(row_loss, t_local.ne(ignored), row_spec, reduction);
}

} // namespace weft::dtensor::kernels
