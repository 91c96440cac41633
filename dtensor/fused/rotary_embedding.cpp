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

// Calls weft::rotary_embedding. The rotation is linear in x, so its gradient is
// the rotation backwards, which `transposed` selects.
at::Tensor call_op(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("weft::rotary_embedding", "")
          .typed<at::Tensor(
              const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>();
  return op.call(x, cos, sin, transposed);
}

void check_operands(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin) {
  TORCH_CHECK_VALUE(
      x.dim() >= 2 && x.size(-1) % 2 == 0 &&
          cos.sizes() == x.sizes().slice(x.dim() - 2) &&
          sin.sizes() == cos.sizes() && cos.scalar_type() == x.scalar_type() &&
          sin.scalar_type() == x.scalar_type(),
      "[rotary_embedding] x [.., T, d] with d even == tables [T, d] in sizes "
      "and dtype: x ",
      x.sizes(),
      " ",
      x.scalar_type(),
      " vs cos ",
      cos.sizes(),
      " ",
      cos.scalar_type(),
      ", sin ",
      sin.sizes(),
      " ",
      sin.scalar_type(),
      ". Narrow the tables to the sequence.");
}

at::Tensor composed_rotary(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  check_operands(x, cos, sin);
  if (transposed) {
    const auto halves = (x * sin).chunk(2, -1);
    return x * cos + at::cat({halves[1], -halves[0]}, -1);
  }
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

// ---- on the CPU -------------------------------------------------------------

void turn(
    const at::Tensor& x_BHTd,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed,
    const at::Tensor& y_BHTd) {
  const auto strides = [](const at::Tensor& tensor, int64_t dim) {
    return tensor.stride(dim);
  };
  const int64_t heads = x_BHTd.size(1);
  const int64_t length = x_BHTd.size(2);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, x_BHTd.scalar_type(), "rotary_embedding", [&] {
        const fused::RotaryLoop<scalar_t> loop{
            x_BHTd.const_data_ptr<scalar_t>(),
            cos.const_data_ptr<scalar_t>(),
            sin.const_data_ptr<scalar_t>(),
            y_BHTd.mutable_data_ptr<scalar_t>(),
            {strides(x_BHTd, 0), strides(x_BHTd, 1), strides(x_BHTd, 2)},
            {strides(y_BHTd, 0), strides(y_BHTd, 1), strides(y_BHTd, 2)},
            cos.stride(0),
            sin.stride(0),
            heads,
            length,
            x_BHTd.size(3) / 2,
            transposed};
        fused::run_rows(loop, x_BHTd.size(0) * length, heads * x_BHTd.size(3));
      });
}

at::Tensor with_full_rows(const at::Tensor& tensor) {
  return tensor.size(-1) == 1 || tensor.stride(-1) == 1 ? tensor
                                                        : tensor.contiguous();
}

at::Tensor with_four_dims(const at::Tensor& tensor) {
  if (tensor.dim() > 4) {
    return tensor.flatten(0, tensor.dim() - 4);
  }
  auto result = tensor;
  while (result.dim() < 4) {
    result = result.unsqueeze(0);
  }
  return result;
}

at::Tensor rotary_on_cpu(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  check_operands(x, cos, sin);
  auto output = at::empty_like(x);
  if (x.is_meta() || x.numel() == 0) {
    return output;
  }
  const auto c = with_full_rows(cos);
  const auto s = with_full_rows(sin);
  // The loop writes to a view of `output` with 4 dims. If `output` has more
  // dims, it must be contiguous for that.
  if (with_full_rows(output).is_same(output) &&
      (x.dim() <= 4 || output.is_contiguous())) {
    turn(
        with_four_dims(with_full_rows(x)),
        c,
        s,
        transposed,
        with_four_dims(output));
    return output;
  }
  const auto dense = at::empty(x.sizes(), x.options());
  turn(
      with_four_dims(with_full_rows(x)),
      c,
      s,
      transposed,
      with_four_dims(dense));
  return output.copy_(dense);
}

// ---- on a GPU ---------------------------------------------------------------

at::Tensor rotary_on_cuda(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  check_operands(x, cos, sin);
  const auto* plugin = mesh::find_cuda_plugin();
  if (plugin != nullptr && x.dim() <= 4) {
    auto output = at::empty_like(x);
    if (plugin->rotary_embedding(
            with_four_dims(output), with_four_dims(x), cos, sin, transposed)) {
      return output;
    }
  }
  return composed_rotary(x, cos, sin, transposed);
}

// ---- the graph --------------------------------------------------------------

struct RotaryEmbeddingBackward final : torch::autograd::Node {
  torch::autograd::SavedVariable cos;
  torch::autograd::SavedVariable sin;
  bool transposed = false;

  std::string name() const override { return "RotaryEmbeddingBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    cos.reset_data();
    sin.reset_data();
  }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return torch::autograd::variable_list(1);
    }
    const std::lock_guard lock(mutex_);
    return {call_op(grads[0], cos.unpack(), sin.unpack(), !transposed)};
  }
};

at::Tensor rotary_above_autograd(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed) {
  if (records_graph(cos) || records_graph(sin)) {
    return composed_rotary(x, cos, sin, transposed);
  }
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = call_op(x, cos, sin, transposed);
  }
  if (records_graph(x)) {
    auto* node = record<RotaryEmbeddingBackward>(x, output);
    node->cos = torch::autograd::SavedVariable(cos, /*is_output=*/false);
    node->sin = torch::autograd::SavedVariable(sin, /*is_output=*/false);
    node->transposed = transposed;
  }
  return output;
}

// ---- cut --------------------------------------------------------------------

// Allows shards along all dims but the last one. The tables are sharded like
// the sequence.
Rule rotary_rule() {
  return {
      .strategies =
          [](const OpCall& call, const StrategyContext&) {
            const auto dims = rules::with_whole_tail(
                rules::all_dims(call.tensors[0].dim()), 1);
            const auto table = dims.substr(dims.size() - 2);
            auto strategies = rules::cut_named_dims(
                call, {{"x", dims}, {"cos", table}, {"sin", table}}, {dims});
            rules::add_linear(strategies, call, {"x"});
            return strategies;
          },
      .infer = rules::like_first};
}

struct RotaryRegistration {
  torch::Library library{
      torch::Library::FRAGMENT,
      "weft",
      std::nullopt,
      __FILE__,
      __LINE__};

  RotaryRegistration() {
    using c10::DispatchKey;
    const char* name = "rotary_embedding";
    library.def(
        "rotary_embedding(Tensor x, Tensor cos, Tensor sin, "
        "bool transposed=False) -> Tensor");
    for (const auto key : {DispatchKey::CPU, DispatchKey::Meta}) {
      library.impl(name, torch::dispatch(key, TORCH_FN(rotary_on_cpu)));
    }
    library.impl(
        name, torch::dispatch(DispatchKey::CUDA, TORCH_FN(rotary_on_cuda)));
    library.impl(
        name,
        torch::dispatch(
            DispatchKey::CompositeExplicitAutograd, TORCH_FN(composed_rotary)));
    library.impl(
        name,
        torch::dispatch(
            DispatchKey::Autograd, TORCH_FN(rotary_above_autograd)));
    register_sharding("weft::rotary_embedding", rotary_rule());
  }
};

} // namespace

at::Tensor rotary_embedding(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin) {
  static const RotaryRegistration registration;
  return call_op(x, cos, sin, /*transposed=*/false);
}

} // namespace weft::dtensor
