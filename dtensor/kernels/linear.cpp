// y = x W^T + b. The weight stays where it lies; per mesh dim:
//   W S(0) (column-parallel)  x whole,       y cut in its last dim
//   W S(1) (row-parallel)     x cut in its last dim, y a pending sum
//   W R                       x as it is (batch or sequence may be cut)
// Source: Megatron-LM's f and g; torch/distributed/tensor/parallel/style.py.

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <torch/torch.h>

#include "dtensor/async_tp.h"
#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/graph_nodes.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/linear_backward.h"
#include "dtensor/kernels/op_layout.h"
#include "dtensor/mesh_arguments.h"
#include "dtensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct LinearPlacements {
  Placements weight, bias, input, output;
  Placements weight_grad, bias_grad, input_grad, output_grad;

  void push(
      Placement w,
      Placement b,
      Placement x,
      Placement y,
      Placement gw,
      Placement gb,
      Placement gx) {
    weight.push_back(w);
    bias.push_back(b);
    input.push_back(x);
    output.push_back(y);
    output_grad.push_back(y.is_partial() ? Replicate() : y);
    weight_grad.push_back(gw);
    bias_grad.push_back(gb);
    input_grad.push_back(gx);
  }
};

// `output_grad`: OpLayout's, or empty.
LinearPlacements plan_linear(
    const Placements& weight,
    const Placements& input,
    const Placements& output_grad,
    int64_t input_ndim) {
  const auto r = Replicate();
  const auto p = Partial();
  const auto last = Shard(input_ndim - 1);
  LinearPlacements plan;
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i].is_shard(0)) {
      plan.push(Shard(0), Shard(0), r, last, Shard(0), Shard(0), p);
    } else if (weight[i].is_shard(1)) {
      plan.push(Shard(1), r, last, p, Shard(1), r, last);
    } else if (!output_grad.empty() && output_grad[i].is_partial()) {
      plan.push(r, r, r, r, p, p, p);
      plan.output_grad.back() = p;
    } else if (input[i].is_shard() && input[i] != last) {
      plan.push(r, r, input[i], input[i], p, p, input[i]);
    } else {
      plan.push(r, r, r, r, r, r, r);
    }
  }
  return plan;
}

LinearPlan entries_of(
    const DTensorSpec& spec,
    const LinearPlacements& placements) {
  const auto entry = [&](const Placements& where) {
    return spec.with(where).id();
  };
  return {
      .weight = entry(placements.weight),
      .bias = entry(placements.bias),
      .input = entry(placements.input),
      .output = entry(placements.output),
      .weight_grad = entry(placements.weight_grad),
      .bias_grad = entry(placements.bias_grad),
      .input_grad = entry(placements.input_grad),
      .output_grad = entry(placements.output_grad)};
}

// The plans of a mesh, by where weight and input lie and the input's dims: as
// many as a model's layers have kinds of.
class LinearPlans {
 public:
  const LinearPlan& find(
      const DTensorSpec& weight,
      const DTensorSpec& input,
      const std::optional<Placements>& output_grad,
      int64_t input_ndim) {
    const auto* grad_id =
        output_grad ? weight.with(*output_grad).id() : nullptr;
    const std::tuple key(weight.id(), input.id(), grad_id, input_ndim);
    const std::lock_guard lock(mutex_);
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      const auto placements = plan_linear(
          weight.placements(),
          input.placements(),
          output_grad.value_or(Placements()),
          input_ndim);
      it = plans_.emplace(key, entries_of(weight, placements)).first;
    }
    return it->second;
  }

 private:
  using Entry = LinearPlan::Entry;
  using Key = std::tuple<Entry, Entry, Entry, int64_t>;
  std::mutex mutex_;
  std::map<Key, LinearPlan> plans_;
};

c10::DimVector output_sizes(const at::Tensor& input, const at::Tensor& weight) {
  c10::DimVector sizes(input.sizes());
  sizes.back() = weight.size(0);
  return sizes;
}

bool lies_ready(const at::Tensor& tensor, LinearPlan::Entry want) {
  const auto* impl = dtensor_impl(tensor);
  return impl->spec().id() == want && !impl->deferred &&
         impl->is_contiguous() && impl->local().is_contiguous();
}

// `x`: a DTensor, or the local tensor of one that entered, of the same sizes
// but for those that the mesh cuts. `b` may be undefined. See
// Note [Linear in place].
at::Tensor linear_in_place(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    c10::IntArrayRef sizes,
    const DTensorSpec& spec,
    const LinearPlan& plan) {
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::optional<at::Tensor> b_local;
    if (b.defined()) {
      b_local = dtensor_impl(b)->local();
    }
    const auto* x_impl = dtensor_impl(x);
    output = make_dtensor(
        at::linear(
            x_impl ? x_impl->local() : x, dtensor_impl(w)->local(), b_local),
        DTensorSpec(spec.mesh(), plan.output),
        sizes,
        row_major_strides(sizes));
  }
  if (records_graph(x) || records_graph(w) ||
      (b.defined() && records_graph(b))) {
    record_linear(x, w, b, plan, output);
  }
  return output;
}

at::Tensor enter_as(
    const at::Tensor& tensor,
    const DTensorSpec& spec,
    LinearPlan::Entry want,
    LinearPlan::Entry grad,
    const std::string& name,
    bool asked = false,
    bool in_two_steps = false) {
  return enter_local(
      tensor,
      DTensorSpec(spec.mesh(), want),
      DTensorSpec(spec.mesh(), grad).placements(),
      name,
      asked,
      in_two_steps);
}

// `x_local`: as it entered. `b`: undefined where the bias is added to the
// whole.
at::Tensor linear_region(
    const at::Tensor& x_local,
    const at::Tensor& w,
    const at::Tensor& b,
    c10::IntArrayRef sizes,
    const DTensorSpec& spec,
    const LinearPlan& plan,
    const std::string& name) {
  const auto w_local = enter_as(w, spec, plan.weight, plan.weight_grad, name);
  std::optional<at::Tensor> b_local;
  if (b.defined()) {
    b_local = enter_as(b, spec, plan.bias, plan.bias_grad, name);
  }
  return leave_local(
      at::linear(x_local, w_local, b_local),
      DTensorSpec(spec.mesh(), plan.output),
      sizes,
      row_major_strides(sizes),
      name,
      DTensorSpec(spec.mesh(), plan.output_grad).placements());
}

const LinearAdapter* adapter_of(const DTensorImpl* weight) {
  return weight && weight->parameter_info
             ? weight->parameter_info->adapter.get()
             : nullptr;
}

} // namespace

at::Tensor linear(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const auto spec = common_spec({&weight, &input});
  static const OpLayout kNone;
  const auto* weight_impl = dtensor_impl(weight);
  const OpLayout& layout = weight_impl && weight_impl->parameter_info
                               ? weight_impl->parameter_info->linear
                               : kNone;
  check_operands(
      "linear", spec, {{input, layout.input.has_value()}, weight, bias});
  const auto x = place_as(input, spec, layout, "linear", weight);
  const auto w = place(weight, spec);
  TORCH_CHECK_VALUE(
      w.dim() == 2 && x.dim() >= 1 && x.size(-1) == w.size(1),
      "[linear] input's last dim == weight's second: input ",
      x.sizes(),
      " vs weight ",
      w.sizes(),
      " \"",
      parameter_name(weight),
      "\".");
  const auto& plan = spec.mesh().extension<LinearPlans>().find(
      spec_of(w), spec_of(x), layout.output_grad, x.dim());
  const DTensorSpec output_spec(spec.mesh(), plan.output);
  const auto b = bias && bias->defined() ? place(*bias, spec) : at::Tensor();
  const bool bias_inside = b.defined() && !output_spec.has_partial();
  const auto inside = bias_inside ? b : at::Tensor();
  const auto sizes = output_sizes(x, w);
  const bool in_place =
      lies_ready(w, plan.weight) && (!bias_inside || lies_ready(b, plan.bias));
  at::Tensor output;
  if (in_place && lies_ready(x, plan.input)) {
    output = linear_in_place(x, w, inside, sizes, spec, plan);
  } else {
    const auto name = label("linear", weight);
    const auto x_local = enter_as(
        x,
        spec,
        plan.input,
        plan.input_grad,
        name,
        /*asked=*/layout.input.has_value(),
        /*in_two_steps=*/async_tp(spec.mesh()) != AsyncTp::kOff);
    output = in_place && x_local.is_contiguous()
                 ? linear_in_place(x_local, w, inside, sizes, spec, plan)
                 : linear_region(x_local, w, inside, sizes, spec, plan, name);
  }
  if (const auto* adapter = adapter_of(weight_impl)) {
    output =
        output +
        adapter_output(
            *adapter, x, spec_of(w), plan, sizes, layout.input.has_value());
  }
  if (layout.output) {
    output = redistribute_to(
        output,
        spec.with(normalized(*layout.output, output.dim())),
        label("linear", weight));
  } else if (b.defined() && !bias_inside) {
    output = redistribute_to(
        output, output_spec.without_partial(), label("linear", weight));
  }
  return b.defined() && !bias_inside ? output + b : output;
}

} // namespace weft::dtensor::kernels
