// y = x W^T + b. The weight is not moved. Per mesh dim:
//   W S(0) (column-parallel)  x replicated, y sharded in its last dim
//   W S(1) (row-parallel)     x sharded in its last dim, y Partial
//   W R                       x unchanged (batch or sequence may be sharded)
// Source: Megatron-LM's f and g; torch/distributed/tensor/parallel/style.py.

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <torch/torch.h>

#include "dtensor/kernels/async_tp.h"
#include "dtensor/kernels/chunked_matmul.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/linear_backward.h"
#include "dtensor/kernels/region.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"

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

// `output_grad` is OpLayout::output_grad, or empty if the style sets none.
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
    } else if (input[i].is_shard() && !input[i].is_shard(last.tensor_dim())) {
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

// The plans of a mesh, by the specs of weight and input, the style's
// output_grad and the number of input dims. There are as many as kinds of
// layers in a model.
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

bool is_placed_as(const at::Tensor& tensor, LinearPlan::Entry want) {
  const auto* impl = dtensor_impl(tensor);
  return impl->spec().id() == want && !impl->deferred && !impl->copied_view &&
         impl->is_contiguous() && impl->local().is_contiguous();
}

struct LinearCall {
  const DTensorSpec& spec;
  const LinearPlan& plan;
  const at::Tensor& w;
  /// The local tensor of the bias that is added before any reduction. Undefined
  /// if there is none.
  const at::Tensor& inside;
  /// The sizes of the output.
  c10::IntArrayRef sizes;
  std::string name;

  DTensorSpec at(LinearPlan::Entry entry) const {
    return DTensorSpec(spec.mesh(), entry);
  }
  const at::Tensor& w_local() const { return dtensor_impl(w)->local(); }
  at::Tensor inside_local() const {
    return inside.defined() ? dtensor_impl(inside)->local() : at::Tensor();
  }
  bool is_in_place() const {
    return is_placed_as(w, plan.weight) &&
           (!inside.defined() || is_placed_as(inside, plan.bias));
  }
};

// Records `output` if an operand requires a gradient. `x` is a DTensor or the
// local tensor from enter_input(). See Note [Linear in place].
at::Tensor finish_in_place(
    const LinearCall& call,
    const at::Tensor& x,
    at::Tensor output,
    bool is_scattered = false) {
  if (records_graph(x) || records_graph(call.w) ||
      (call.inside.defined() && records_graph(call.inside))) {
    record_linear(
        x,
        call.w,
        call.inside,
        call.spec.mesh(),
        call.plan,
        is_scattered,
        output);
  }
  return output;
}

const at::Tensor& local_of_input(const at::Tensor& x) {
  const auto* impl = dtensor_impl(x);
  return impl ? impl->local() : x;
}

// `product` is the product of the local tensors if enter_input() has computed
// it.
at::Tensor linear_in_place(
    const LinearCall& call,
    const at::Tensor& x,
    at::Tensor product = {}) {
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (!product.defined()) {
      const auto inside = call.inside_local();
      product = at::linear(
          local_of_input(x),
          call.w_local(),
          inside.defined() ? std::optional(inside) : std::nullopt);
    }
    output = make_dtensor(
        product,
        call.at(call.plan.output),
        call.sizes,
        row_major_strides(call.sizes));
  }
  return finish_in_place(call, x, std::move(output));
}

// Returns the output with the spec `to`: reduce-scatters each chunk of the
// Partial product while the next ones are multiplied. Returns an undefined
// tensor if all rows move in one message.
at::Tensor linear_scattered(
    const LinearCall& call,
    const at::Tensor& x,
    const DTensorSpec& to) {
  const auto rows = plan_row_chunks(
      {.cut = to,
       .together = call.at(call.plan.output),
       .sizes = call.sizes,
       .dtype = x.scalar_type(),
       .other = call.w.size(1)});
  if (!rows) {
    return {};
  }
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto& local = local_of_input(x);
    auto sizes = rows->whole;
    sizes[rows->dim] = rows->rows[rows->group.rank()].length;
    const auto result = at::empty(sizes, local.options());
    output =
        make_dtensor(result, to, call.sizes, row_major_strides(call.sizes));
    const detail::RedistributeScope move(
        output, call.at(call.plan.output), to, /*is_implicit=*/false);
    matmul_reduce_scatter(*rows, local, call.w_local().t(), result, call.name);
  }
  return finish_in_place(call, x, std::move(output), /*is_scattered=*/true);
}

at::Tensor enter_as(
    const at::Tensor& tensor,
    const LinearCall& call,
    LinearPlan::Entry want,
    LinearPlan::Entry grad,
    const ToLocalImplOptions& options = {}) {
  return to_local_impl(
      tensor, call.at(want), call.at(grad).placements(), call.name, options);
}

// The local tensor of the input, and the product if it was computed while the
// rows of the input were gathered.
struct EnteredInput {
  at::Tensor local;
  at::Tensor product;
};

EnteredInput
enter_input(const LinearCall& call, const at::Tensor& x, bool asked) {
  EnteredInput entered;
  // DTensors without a mesh, e.g. those of a module that only FSDP shards, are
  // not moved.
  const bool has_mesh = call.spec.mesh_ndim() > 0;
  ToLocalImplOptions options{
      .asked = asked,
      .in_two_steps = has_mesh && async_tp(call.spec.mesh()) != AsyncTp::kOff};
  if (has_mesh && call.is_in_place()) {
    const auto rows = plan_row_chunks(
        {.cut = spec_of(x),
         .together = call.at(call.plan.input),
         .sizes = x.sizes(),
         .dtype = x.scalar_type(),
         .other = call.w.size(0)});
    if (rows) {
      options.move = [&, rows] {
        auto moved = all_gather_matmul(
            *rows,
            dtensor_impl(x)->local(),
            call.w_local().t(),
            call.inside_local(),
            call.name);
        entered.product = std::move(moved.product);
        return moved.whole;
      };
    }
  }
  entered.local =
      enter_as(x, call, call.plan.input, call.plan.input_grad, options);
  return entered;
}

// `x_local` is the local tensor from enter_input().
at::Tensor linear_region(const LinearCall& call, const at::Tensor& x_local) {
  const auto& plan = call.plan;
  const auto w_local = enter_as(call.w, call, plan.weight, plan.weight_grad);
  std::optional<at::Tensor> b_local;
  if (call.inside.defined()) {
    b_local = enter_as(call.inside, call, plan.bias, plan.bias_grad);
  }
  auto output = from_local_impl(
      at::linear(x_local, w_local, b_local),
      call.at(plan.output),
      call.sizes,
      row_major_strides(call.sizes),
      call.name,
      call.at(plan.output_grad).placements());
  use_in_backward(output, {&call.w});
  return output;
}

// `scatter_to` is the spec to which the caller redistributes the output. Empty
// if there is none, or if the caller adds an adapter's output first.
at::Tensor run_linear(
    const LinearCall& call,
    const at::Tensor& x,
    bool asked,
    const std::optional<DTensorSpec>& scatter_to) {
  const bool in_place = call.is_in_place();
  EnteredInput entered;
  const bool x_ready = in_place && is_placed_as(x, call.plan.input);
  if (!x_ready) {
    entered = enter_input(call, x, asked);
  }
  const auto& input = x_ready ? x : entered.local;
  if (!in_place || !(x_ready || input.is_contiguous())) {
    return linear_region(call, input);
  }
  if (scatter_to && !entered.product.defined()) {
    if (auto output = linear_scattered(call, input, *scatter_to);
        output.defined()) {
      return output;
    }
  }
  return linear_in_place(call, input, std::move(entered.product));
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
  const auto spec = common_spec({&weight, &input, bias ? &*bias : nullptr});
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
  const LinearCall call{spec, plan, w, inside, sizes, label("linear", weight)};
  const auto* adapter = adapter_of(weight_impl);
  std::optional<DTensorSpec> wanted;
  if (layout.output) {
    wanted = spec.with(
        normalized(*layout.output, static_cast<int64_t>(sizes.size())));
  } else if (b.defined() && !bias_inside) {
    wanted = output_spec.without_partial();
  }
  const bool asked = layout.input.has_value();
  auto output = run_linear(call, x, asked, adapter ? std::nullopt : wanted);
  if (adapter) {
    output =
        output + adapter_output(*adapter, x, spec_of(w), plan, sizes, asked);
  }
  if (wanted) {
    output = redistribute_to(output, *wanted, call.name);
  }
  return b.defined() && !bias_inside ? output + b : output;
}

} // namespace weft::dtensor::kernels
