#include "dtensor/kernels/gpu_row_loss.h"

#include <torch/torch.h>

#include "dtensor/kernels/row_statistics.h"
#include "mesh/device/device_plugin.h"

namespace weft::dtensor::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Computes the gradient of the logits with libtorch's ops, which have
// derivatives, for create_graph.
at::Tensor differentiable_gradient(
    const at::Tensor& logits,
    const at::Tensor& target,
    int64_t ignore_index,
    const variable_list& grads) {
  const auto x = precise(logits);
  const auto ignored = target.eq(ignore_index);
  const auto loss_grad = grads[0].defined() ? grads[0].masked_fill(ignored, 0)
                                            : at::zeros_like(x.select(1, 0));
  const auto scale = grads[1].defined() ? loss_grad + grads[1] : loss_grad;
  const auto column = target.masked_fill(ignored, 0).unsqueeze(1);
  return (at::softmax(x, 1) * scale.unsqueeze(1))
      .scatter_add(1, column, -loss_grad.unsqueeze(1))
      .to(logits.scalar_type());
}

struct GpuRowLoss : torch::autograd::Function<GpuRowLoss> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& target,
      const RowStatistics& known,
      const ClassPart& part) {
    const auto log_sum = known.log_sum();
    const auto loss =
        (log_sum - known[2]).masked_fill_(target.eq(part.ignore_index), 0);
    context->set_materialize_grads(false);
    context->saved_data["first"] = part.ranges[0].begin;
    context->saved_data["classes"] = part.classes;
    context->saved_data["ignore_index"] = part.ignore_index;
    context->saved_data["is_shared"] = !part.groups.empty();
    context->save_for_backward({logits, target, log_sum});
    return {loss, log_sum};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list results(4);
    if (!grads[0].defined() && !grads[1].defined()) {
      return results;
    }
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const int64_t ignore_index = context->saved_data["ignore_index"].toInt();
    if (context->saved_data["is_shared"].toBool()) {
      refuse_second_derivative(grads);
    } else if (at::GradMode::is_enabled()) {
      results[0] =
          differentiable_gradient(logits, saved[1], ignore_index, grads);
      return results;
    }
    results[0] = at::empty(logits.sizes(), logits.options());
    const auto loss_grad =
        grads[0].defined() ? grads[0] : at::zeros_like(saved[2]);
    const bool done = mesh::find_cuda_plugin()->class_gradient(
        results[0],
        {.logits = logits,
         .target = saved[1],
         .first_class = context->saved_data["first"].toInt(),
         .classes = context->saved_data["classes"].toInt(),
         .ignore_index = ignore_index},
        saved[2],
        loss_grad,
        grads[1].defined() ? grads[1].contiguous() : at::Tensor());
    TORCH_INTERNAL_ASSERT(done, "class_statistics() took the same rows");
    return results;
  }
};

} // namespace

std::optional<RowLosses> row_losses_on_gpu(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const ClassPart& part) {
  const bool fits = logits.is_cuda() && logits.dim() == 2 && part.dim == 1 &&
                    part.ranges.size() == 1 && part.label_smoothing == 0 &&
                    !weight.defined() && !target.is_floating_point();
  const auto* plugin = fits ? mesh::find_cuda_plugin() : nullptr;
  if (plugin == nullptr) {
    return std::nullopt;
  }
  RowStatistics known(logits, part.dim, 3, 0);
  const bool done = plugin->class_statistics(
      known.buffer,
      {.logits = logits,
       .target = target,
       .first_class = part.ranges[0].begin,
       .classes = part.classes,
       .ignore_index = part.ignore_index});
  if (!done) {
    return std::nullopt;
  }
  known.combine(part.groups);
  const auto numbers = GpuRowLoss::apply(logits, target, known, part);
  return RowLosses{.loss = numbers[0], .log_sum = numbers[1], .weight = {}};
}

} // namespace weft::dtensor::kernels
