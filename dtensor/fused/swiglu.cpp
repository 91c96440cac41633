#include <initializer_list>
#include <tuple>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/register_sharding.h"
#include "dtensor/fused/cpu_loops.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/fused/rows.h"
#include "dtensor/rules/named_dims.h"
#include "dtensor/tensor/graph_nodes.h"
#include "mesh/device/device_plugin.h"

namespace weft::dtensor {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call_forward(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("weft::swiglu", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(gate, up);
}

Gradients call_backward(
    const at::Tensor& grad,
    const at::Tensor& gate,
    const at::Tensor& up) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("weft::swiglu_backward", "")
          .typed<Gradients(
              const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  return op.call(grad, gate, up);
}

void check_alike(const at::Tensor& gate, const at::Tensor& up) {
  TORCH_CHECK_VALUE(
      gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
      "[swiglu] gate == up in sizes and dtype: ",
      gate.sizes(),
      " ",
      gate.scalar_type(),
      " vs ",
      up.sizes(),
      " ",
      up.scalar_type(),
      ". Expand or convert one of them.");
}

// ---- the composed form ------------------------------------------------------

at::Tensor composed_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_alike(gate, up);
  return at::silu(gate) * up;
}

Gradients composed_backward(
    const at::Tensor& grad,
    const at::Tensor& gate,
    const at::Tensor& up) {
  // silu_backward() is not used here, because it has no derivative.
  const auto sigmoid = at::sigmoid(gate);
  const auto slope = sigmoid * (1 + gate * (1 - sigmoid));
  return {grad * up * slope, grad * (gate * sigmoid)};
}

// ---- on the CPU -------------------------------------------------------------

// The rows of a loop. If all tensors have the same dense strides, the rows are
// pieces of one row with all elements. Otherwise they are rows along the last
// dim, and tensors without contiguous and equidistant rows are copied.
class ElementwiseLayout {
 public:
  explicit ElementwiseLayout(std::initializer_list<at::Tensor*> inputs) {
    const auto& first = **inputs.begin();
    flat_ = first.is_non_overlapping_and_dense() &&
            std::ranges::all_of(inputs, [&](const auto* tensor) {
              return tensor->strides() == first.strides();
            });
    if (!flat_) {
      for (auto* tensor : inputs) {
        *tensor = fused::with_rows(*tensor);
      }
    }
    columns = flat_ ? kPiece : first.size(-1);
    count = first.numel();
  }

  at::Tensor make_output(const at::Tensor& first) const {
    return flat_ ? at::empty_like(first)
                 : at::empty(first.sizes(), first.options());
  }
  int64_t stride(const at::Tensor& tensor) const {
    return flat_ ? columns : *fused::row_stride(tensor);
  }
  template <class Loop>
  void run(const Loop& loop) const {
    if (count > 0) {
      fused::run_rows(loop, (count + columns - 1) / columns, columns);
    }
  }

  int64_t columns;
  int64_t count;

 private:
  static constexpr int64_t kPiece = 1024;
  bool flat_;
};

at::Tensor swiglu_on_cpu(const at::Tensor& gate_, const at::Tensor& up_) {
  check_alike(gate_, up_);
  if (gate_.is_meta()) {
    return at::empty_like(gate_);
  }
  auto gate = gate_;
  auto up = up_;
  const ElementwiseLayout walk({&gate, &up});
  auto output = walk.make_output(gate);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, gate.scalar_type(), "swiglu", [&] {
        walk.run(fused::SwigluLoop<scalar_t>{
            gate.const_data_ptr<scalar_t>(),
            up.const_data_ptr<scalar_t>(),
            output.mutable_data_ptr<scalar_t>(),
            walk.stride(gate),
            walk.stride(up),
            walk.columns,
            walk.columns,
            walk.count});
      });
  return output.strides() == gate.strides()
             ? output
             : fused::laid_out_like(gate_, output);
}

Gradients swiglu_on_cpu_backward(
    const at::Tensor& grad_,
    const at::Tensor& gate_,
    const at::Tensor& up_) {
  if (gate_.is_meta()) {
    return {at::empty_like(gate_), at::empty_like(gate_)};
  }
  auto gate = gate_;
  auto up = up_;
  auto grad = grad_;
  const ElementwiseLayout walk({&gate, &up, &grad});
  auto gate_grad = walk.make_output(gate);
  auto up_grad = walk.make_output(gate);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, gate.scalar_type(), "swiglu_backward", [&] {
        walk.run(fused::SwigluBackwardLoop<scalar_t>{
            grad.const_data_ptr<scalar_t>(),
            gate.const_data_ptr<scalar_t>(),
            up.const_data_ptr<scalar_t>(),
            gate_grad.mutable_data_ptr<scalar_t>(),
            up_grad.mutable_data_ptr<scalar_t>(),
            walk.stride(grad),
            walk.stride(gate),
            walk.stride(up),
            walk.columns,
            walk.columns,
            walk.count});
      });
  if (gate_grad.strides() == gate.strides()) {
    return {gate_grad, up_grad};
  }
  return {
      fused::laid_out_like(gate_, gate_grad),
      fused::laid_out_like(gate_, up_grad)};
}

// ---- on a GPU ---------------------------------------------------------------

at::Tensor swiglu_on_cuda(const at::Tensor& gate, const at::Tensor& up) {
  check_alike(gate, up);
  const auto* plugin = mesh::find_cuda_plugin();
  if (plugin != nullptr) {
    auto output = at::empty_like(gate);
    if (plugin->swiglu(output, gate, up)) {
      return output;
    }
  }
  return composed_swiglu(gate, up);
}

Gradients swiglu_on_cuda_backward(
    const at::Tensor& grad_,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto* plugin = mesh::find_cuda_plugin();
  if (plugin != nullptr) {
    // The kernel needs the strides of `gate`. The gradient of a sum, for
    // instance, is one number expanded.
    const auto grad = grad_.strides() == gate.strides()
                          ? grad_
                          : at::empty_like(gate).copy_(grad_);
    auto gate_grad = at::empty_like(gate);
    auto up_grad = at::empty_like(gate);
    if (plugin->swiglu_backward(gate_grad, up_grad, grad, gate, up)) {
      return {gate_grad, up_grad};
    }
  }
  return composed_backward(grad_, gate, up);
}

// ---- the graph --------------------------------------------------------------

struct SwigluBackward final : torch::autograd::Node {
  torch::autograd::SavedVariable gate;
  torch::autograd::SavedVariable up;

  std::string name() const override { return "SwigluBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    gate.reset_data();
    up.reset_data();
  }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return torch::autograd::variable_list(2);
    }
    const std::lock_guard lock(mutex_);
    const auto g = gate.unpack();
    const auto u = up.unpack();
    if (at::GradMode::is_enabled()) {
      auto [gate_grad, up_grad] = composed_backward(grads[0], g, u);
      return {gate_grad, up_grad};
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [gate_grad, up_grad] = call_backward(grads[0], g, u);
    return {gate_grad, up_grad};
  }
};

at::Tensor swiglu_above_autograd(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = call_forward(gate, up);
  }
  if (records_graph(gate) || records_graph(up)) {
    auto [pointer, node] = make_node<SwigluBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(gate, up));
    node->gate = torch::autograd::SavedVariable(gate, /*is_output=*/false);
    node->up = torch::autograd::SavedVariable(up, /*is_output=*/false);
    torch::autograd::create_gradient_edge(output, std::move(pointer));
  }
  return output;
}

// ---- cut --------------------------------------------------------------------

// Allows shards along any dim, alike in all tensors. The argument `linear_in`
// is the one in which the op is linear: `up` in swiglu, `grad` in its backward.
Rule swiglu_rule(const char* linear_in) {
  return {
      .strategies =
          [linear_in](const OpCall& call, const StrategyContext& context) {
            const auto dims = rules::all_dims(call.tensors[0].dim());
            auto strategies = rules::cut_named_dims(
                call,
                {{"grad", dims}, {"gate", dims}, {"up", dims}},
                std::vector<std::string>(context.outputs.size(), dims));
            rules::add_linear(strategies, call, {linear_in});
            return strategies;
          },
      .infer =
          [](const OpCall& call) {
            const auto& gate = *rules::tensor_argument(call, "gate");
            return std::vector<OutputMeta>(
                call.op.schema().returns().size(), rules::like(gate));
          }};
}

struct SwigluRegistration {
  torch::Library library{
      torch::Library::FRAGMENT,
      "weft",
      std::nullopt,
      __FILE__,
      __LINE__};

  SwigluRegistration() {
    using c10::DispatchKey;
    library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
    library.def(
        "swiglu_backward(Tensor grad, Tensor gate, Tensor up)"
        " -> (Tensor, Tensor)");
    for (const auto key : {DispatchKey::CPU, DispatchKey::Meta}) {
      library.impl("swiglu", torch::dispatch(key, TORCH_FN(swiglu_on_cpu)));
      library.impl(
          "swiglu_backward",
          torch::dispatch(key, TORCH_FN(swiglu_on_cpu_backward)));
    }
    library.impl(
        "swiglu", torch::dispatch(DispatchKey::CUDA, TORCH_FN(swiglu_on_cuda)));
    library.impl(
        "swiglu_backward",
        torch::dispatch(DispatchKey::CUDA, TORCH_FN(swiglu_on_cuda_backward)));
    const auto other = DispatchKey::CompositeExplicitAutograd;
    library.impl("swiglu", torch::dispatch(other, TORCH_FN(composed_swiglu)));
    library.impl(
        "swiglu_backward", torch::dispatch(other, TORCH_FN(composed_backward)));
    library.impl(
        "swiglu",
        torch::dispatch(
            DispatchKey::Autograd, TORCH_FN(swiglu_above_autograd)));
    register_sharding("weft::swiglu", swiglu_rule("up"));
    register_sharding("weft::swiglu_backward", swiglu_rule("grad"));
  }
};

} // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  static const SwigluRegistration registration;
  return call_forward(gate, up);
}

} // namespace weft::dtensor
