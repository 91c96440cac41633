#include "dtensor/kernels/linear_adapter.h"

#include <torch/torch.h>

#include "dtensor/kernels/linear_backward.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"

namespace weft::dtensor::kernels {
namespace {

struct AdapterPlacements {
  Placements down, up, down_grad, up_grad;
};

// Returns the placements that LinearAdapter documents. If a mesh dim shards one
// of the weights, the gradient of the other one is Partial there, because each
// rank uses the replicated weight with a part of the tensors.
AdapterPlacements adapter_placements(
    const Placements& weight,
    const Placements& weight_grad) {
  AdapterPlacements plan;
  for (size_t i = 0; i < weight.size(); ++i) {
    const bool by_rows = weight[i].is_shard(0);
    const bool by_columns = weight[i].is_shard(1);
    plan.down.push_back(by_columns ? Shard(1) : Replicate());
    plan.up.push_back(by_rows ? Shard(0) : Replicate());
    plan.down_grad.push_back(
        by_columns ? Shard(1) : (by_rows ? Partial() : weight_grad[i]));
    plan.up_grad.push_back(
        by_rows ? Shard(0) : (by_columns ? Partial() : weight_grad[i]));
  }
  return plan;
}

} // namespace

at::Tensor adapter_output(
    const LinearAdapter& adapter,
    const at::Tensor& x,
    const DTensorSpec& weight,
    const LinearPlan& plan,
    c10::IntArrayRef sizes,
    bool asked) {
  const auto& down = adapter.down->weight;
  const auto& up = adapter.up->weight;
  before_forward_use(down);
  before_forward_use(up);
  const auto& mesh = weight.mesh();
  const DTensorSpec input(mesh, plan.input);
  const auto where = adapter_placements(
      DTensorSpec(mesh, plan.weight).placements(),
      DTensorSpec(mesh, plan.weight_grad).placements());
  const bool drops = adapter.dropout > 0 && adapter.down->is_training();
  const auto x_local = to_local_impl(
      drops ? at::dropout(x, adapter.dropout, /*train=*/true) : x,
      input,
      DTensorSpec(mesh, plan.input_grad).placements(),
      "lora",
      {.asked = asked});
  // Under autocast the input has another dtype than the parameters.
  const auto dtype = x_local.scalar_type();
  const auto down_local =
      to_local_impl(down, input.with(where.down), where.down_grad, "lora_A")
          .to(dtype);
  const auto up_local =
      to_local_impl(up, input.with(where.up), where.up_grad, "lora_B")
          .to(dtype);
  const auto local =
      at::linear(at::linear(x_local, down_local), up_local) * adapter.scale;
  auto output = from_local_impl(
      local,
      DTensorSpec(mesh, plan.output),
      sizes,
      row_major_strides(sizes),
      "lora",
      DTensorSpec(mesh, plan.output_grad).placements());
  use_in_backward(output, {&down, &up});
  return output;
}

} // namespace weft::dtensor::kernels
