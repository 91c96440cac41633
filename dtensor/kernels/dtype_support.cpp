#include "dtensor/kernels/dtype_support.h"

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

struct NeededOp {
  std::string_view name;
  /// Computes the op with a parameter [4, 4]. failure_of() sums the result and
  /// calls backward().
  std::function<at::Tensor(const at::Tensor&)> run;
};

std::array<NeededOp, 8> needed_ops() {
  using at::Tensor;
  return {
      {{"matrix product", [](const Tensor& w) { return w.mm(w.t()); }},
       {"addition and activation",
        [](const Tensor& w) { return at::silu(w + w * 2) * at::gelu(w); }},
       {"softmax", [](const Tensor& w) { return w.softmax(-1); }},
       {"layer_norm",
        [](const Tensor& w) { return at::layer_norm(w, {4}, w[0], w[1]); }},
       {"rms_norm",
        [](const Tensor& w) { return at::rms_norm(w, {4}, w[0], 1e-5); }},
       {"embedding",
        [](const Tensor& w) {
          return at::embedding(w, at::arange(4, w.options().dtype(at::kLong)));
        }},
       {"attention",
        [](const Tensor& w) {
          const auto heads = w.view({1, 1, 4, 4});
          return at::scaled_dot_product_attention(
              heads, heads, heads, {}, 0.0, /*is_causal=*/true);
        }},
       {"cross_entropy", [](const Tensor& w) {
          return at::cross_entropy_loss(
              w.to(at::promote_types(w.scalar_type(), at::kFloat)),
              at::arange(4, w.options().dtype(at::kLong)));
        }}}};
}

// Returns why an op fails, or nothing. A message of libtorch is reduced to its
// first line.
std::optional<std::string>
failure_of(const NeededOp& op, c10::Device device, c10::ScalarType dtype) {
  try {
    const at::AutoGradMode grad(true);
    auto parameter = at::arange(16, at::TensorOptions(at::kFloat))
                         .view({4, 4})
                         .div(16)
                         .to(device)
                         .to(dtype)
                         .requires_grad_();
    op.run(parameter).sum().backward();
    if (!parameter.grad().to(at::kFloat).isfinite().all().item<bool>()) {
      return "its gradient is not finite";
    }
    return std::nullopt;
  } catch (const c10::Error& error) {
    return mesh::first_line_of(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

} // namespace

void check_dtype(c10::Device device, c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      at::isFloatingType(dtype),
      "[check_dtype] expected a floating-point dtype to train in, got ",
      dtype,
      ".");
  for (const auto& op : needed_ops()) {
    const auto reason = failure_of(op, device, dtype);
    TORCH_CHECK_VALUE(
        !reason,
        "[check_dtype] ",
        dtype,
        " cannot be trained in on ",
        device,
        ": ",
        op.name,
        ": ",
        *reason,
        ". Use float32 or bfloat16.");
  }
}

} // namespace weft::dtensor
