// y = x W^T + b. The weight stays where it lies; per mesh dim:
//   W S(0) (column-parallel)  x whole,       y cut in its last dim
//   W S(1) (row-parallel)     x cut in its last dim, y a pending sum
//   W R                       x as it is (batch or sequence may be cut)
// Source: Megatron-LM's f and g; torch/distributed/tensor/parallel/style.py.

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/graph_nodes.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/mesh_arguments.h"
#include "dtensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct LinearPlacements {
  Placements weight, bias, input, output;
  Placements weight_grad, bias_grad, input_grad;

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
    weight_grad.push_back(gw);
    bias_grad.push_back(gb);
    input_grad.push_back(gx);
  }
};

LinearPlacements plan_linear(
    const Placements& weight,
    const Placements& input,
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
    } else if (input[i].is_shard() && input[i] != last) {
      plan.push(r, r, input[i], input[i], p, p, input[i]);
    } else {
      plan.push(r, r, r, r, r, r, r);
    }
  }
  return plan;
}

// What plan_linear() says, as entries of the mesh's table.
struct LinearPlan {
  using Entry = const DTensorSpec::Entry*;
  Entry weight, bias, input, output;
  Entry weight_grad, bias_grad, input_grad, output_grad;

  LinearPlan(const DTensorSpec& spec, const LinearPlacements& placements)
      : weight(spec.with(placements.weight).id()),
        bias(spec.with(placements.bias).id()),
        input(spec.with(placements.input).id()),
        output(spec.with(placements.output).id()),
        weight_grad(spec.with(placements.weight_grad).id()),
        bias_grad(spec.with(placements.bias_grad).id()),
        input_grad(spec.with(placements.input_grad).id()),
        output_grad(spec.with(placements.output).without_partial().id()) {}
};

// The plans of a mesh, by where weight and input lie and the input's dims: as
// many as a model's layers have kinds of.
class LinearPlans {
 public:
  const LinearPlan& find(
      const DTensorSpec& weight,
      const DTensorSpec& input,
      int64_t input_ndim) {
    const std::tuple key(weight.id(), input.id(), input_ndim);
    const std::lock_guard lock(mutex_);
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      const auto placements =
          plan_linear(weight.placements(), input.placements(), input_ndim);
      it = plans_.emplace(key, LinearPlan(weight, placements)).first;
    }
    return it->second;
  }

 private:
  using Key =
      std::tuple<const DTensorSpec::Entry*, const DTensorSpec::Entry*, int64_t>;
  std::mutex mutex_;
  std::map<Key, LinearPlan> plans_;
};

c10::DimVector output_sizes(const at::Tensor& input, const at::Tensor& weight) {
  c10::DimVector sizes(input.sizes());
  sizes.back() = weight.size(0);
  return sizes;
}

at::Tensor rows_of(const at::Tensor& tensor) {
  const int64_t columns = tensor.size(-1);
  int64_t rows = 1;
  for (const int64_t size : tensor.sizes().slice(0, tensor.dim() - 1)) {
    rows *= size;
  }
  return tensor.dim() == 2 ? tensor : tensor.reshape({rows, columns});
}

// Note [Linear in place]
// ~~~~~~~~~~~~~~~~~~~~~~
// Where the weight and the bias lie as linear() wants them, it needs no region
// of recorded local tensors: the op runs below autograd and one node takes the
// place of libtorch's own for t() and mm and of those that enter and leave a
// region. Its gradients are the same products of the same local tensors. An
// input that lies elsewhere enters as in a region, so that all who ask for it
// share one move: the node then stands on its local tensor. What is to be moved
// (an outer gradient), or recorded (create_graph), goes through a region.
struct LinearBackward final : torch::autograd::Node {
  using Entry = LinearPlan::Entry;
  /// A DTensor, or the local tensor of one that entered.
  torch::autograd::SavedVariable input;
  torch::autograd::SavedVariable weight;
  /// In the mesh, which what is saved holds.
  const LinearPlan* plan = nullptr;

  std::string name() const override { return "LinearBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list results(3);
    if (!grads[0].defined()) {
      return results;
    }
    const std::lock_guard lock(mutex_);
    const auto x = input.unpack();
    const auto w = weight.unpack();
    require_dtensor_gradient(grads[0], "linear backward");
    const auto grad =
        rows_of(enter(grads[0], plan->output_grad, plan->output, w));
    // Nobody records: straight to the local tensors' kernels.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!at::GradMode::is_enabled()) {
      below.emplace();
    }
    const auto* x_impl = dtensor_impl(x);
    if (task_should_compute_output(0)) {
      const auto product =
          grad.mm(enter(w, plan->weight, plan->weight_grad, w));
      const auto& local = x_impl ? x_impl->local() : x;
      const auto dx = x.dim() == 2 ? product : product.view(local.sizes());
      results[0] =
          x_impl ? leave(dx, plan->input_grad, x.sizes(), x.strides(), w) : dx;
    }
    if (task_should_compute_output(1)) {
      const auto rows =
          rows_of(x_impl ? enter(x, plan->input, plan->input_grad, w) : x);
      results[1] = leave(
          grad.t().mm(rows), plan->weight_grad, w.sizes(), w.strides(), w);
    }
    if (task_should_compute_output(2)) {
      results[2] =
          leave(grad.sum(0), plan->bias_grad, w.sizes().slice(0, 1), {1}, w);
    }
    return results;
  }

 private:
  // `w` gives the mesh and the name.
  static at::Tensor
  enter(const at::Tensor& tensor, Entry want, Entry grad, const at::Tensor& w) {
    const auto* impl = dtensor_impl(tensor);
    if (!at::GradMode::is_enabled() && impl->spec().id() == want) {
      return impl->local();
    }
    const auto& mesh = spec_of(w).mesh();
    return enter_local(
        tensor,
        DTensorSpec(mesh, want),
        DTensorSpec(mesh, grad).placements(),
        label("linear", w));
  }

  static at::Tensor leave(
      const at::Tensor& local,
      Entry spec,
      c10::IntArrayRef sizes,
      c10::IntArrayRef strides,
      const at::Tensor& w) {
    const DTensorSpec where(spec_of(w).mesh(), spec);
    return at::GradMode::is_enabled()
               ? leave_local(local, where, sizes, strides, label("linear", w))
               : make_dtensor(local, where, sizes, strides);
  }
};

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
    auto [pointer, node] = make_node<LinearBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x, w, b));
    node->input = torch::autograd::SavedVariable(x, /*is_output=*/false);
    node->weight = torch::autograd::SavedVariable(w, /*is_output=*/false);
    node->plan = &plan;
    torch::autograd::create_gradient_edge(output, std::move(pointer));
  }
  return output;
}

at::Tensor enter_as(
    const at::Tensor& tensor,
    const DTensorSpec& spec,
    LinearPlan::Entry want,
    LinearPlan::Entry grad,
    const std::string& name,
    bool asked = false) {
  return enter_local(
      tensor,
      DTensorSpec(spec.mesh(), want),
      DTensorSpec(spec.mesh(), grad).placements(),
      name,
      asked);
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
      name);
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
  const auto x = place(input, spec, layout.input);
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
      spec_of(w), spec_of(x), x.dim());
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
        /*asked=*/layout.input.has_value());
    output = in_place && x_local.is_contiguous()
                 ? linear_in_place(x_local, w, inside, sizes, spec, plan)
                 : linear_region(x_local, w, inside, sizes, spec, plan, name);
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
