#include "dtensor/init/meta_kernels.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include <ATen/AccumulateType.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

namespace weft::dtensor {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor meta_index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) {
    sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  }
  return at::empty(sizes, self.options());
}

Tensor embedding_dense_backward(
    const Tensor& grad,
    const Tensor& /*indices*/,
    c10::SymInt num_weights,
    c10::SymInt /*padding_idx*/,
    bool /*scale_grad_by_freq*/) {
  return at::empty({num_weights.expect_int(), grad.size(-1)}, grad.options());
}

Tensor like_if(bool wanted, const OptionalTensor& tensor) {
  return wanted && tensor && tensor->defined() ? at::empty_like(*tensor)
                                               : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> meta_layer_norm(
    const Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const OptionalTensor& /*weight*/,
    const OptionalTensor& /*bias*/,
    double /*eps*/) {
  auto rows = input.sizes().vec();
  const size_t kept = rows.size() - normalized_shape.size();
  std::fill(rows.begin() + static_cast<std::ptrdiff_t>(kept), rows.end(), 1);
  const auto options =
      input.options().dtype(at::toAccumulateType(input.scalar_type(), false));
  return {
      at::empty(input.sizes(), input.options()),
      at::empty(rows, options),
      at::empty(rows, options)};
}

Tensor meta_relu(const Tensor& self) {
  return at::empty_like(self);
}

std::tuple<Tensor, Tensor, Tensor> meta_layer_norm_backward(
    const Tensor& /*grad*/,
    const Tensor& input,
    c10::SymIntArrayRef /*normalized_shape*/,
    const Tensor& /*mean*/,
    const Tensor& /*rstd*/,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> mask) {
  return {
      like_if(mask[0], input),
      like_if(mask[1], weight),
      like_if(mask[2], bias)};
}

Tensor
meta_where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const auto sizes = at::infer_size(
      condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(sizes, self.options().dtype(at::result_type(self, other)));
}

Tensor& resized(Tensor& out, at::IntArrayRef sizes) {
  if (out.sizes() != sizes) {
    out.resize_(sizes);
  }
  return out;
}

Tensor& where_out(
    const Tensor& condition,
    const Tensor& self,
    const Tensor& other,
    Tensor& out) {
  return resized(
      out,
      at::infer_size(
          condition.sizes(), at::infer_size(self.sizes(), other.sizes())));
}

Tensor meta_logsumexp(const Tensor& self, at::IntArrayRef dims, bool keepdim) {
  return at::sum(self, dims, keepdim);
}

Tensor& unary_out(const Tensor& self, Tensor& out) {
  return resized(out, self.sizes());
}

Tensor& binary_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return resized(out, at::infer_size(self.sizes(), other.sizes()));
}

Tensor flip(const Tensor& self, at::IntArrayRef /*dims*/) {
  return at::empty_like(self);
}

Tensor meta_roll(
    const Tensor& self,
    c10::SymIntArrayRef /*shifts*/,
    at::IntArrayRef /*dims*/) {
  return at::empty_like(self);
}

std::tuple<Tensor, Tensor> native_dropout(
    const Tensor& input,
    double /*p*/,
    std::optional<bool> /*train*/) {
  return {
      at::empty_like(input),
      at::empty_like(input, input.options().dtype(at::kBool))};
}

Tensor native_dropout_backward(
    const Tensor& grad,
    const Tensor& /*mask*/,
    double /*scale*/) {
  return at::empty_like(grad);
}

Tensor&
masked_fill(Tensor& self, const Tensor& /*mask*/, const at::Scalar& /*value*/) {
  return self;
}

Tensor& masked_fill_tensor(
    Tensor& self,
    const Tensor& /*mask*/,
    const Tensor& /*value*/) {
  return self;
}

// Returns an empty tensor of sizes [B, H, T, last] whose memory has the order
// [B, T, H, last], like the outputs of the CPU kernel.
Tensor by_token(const Tensor& like, int64_t last) {
  return at::empty(
             {like.size(0), like.size(2), like.size(1), last}, like.options())
      .transpose(1, 2);
}

std::tuple<Tensor, Tensor> meta_attention(
    const Tensor& query,
    const Tensor& /*key*/,
    const Tensor& value,
    double /*dropout_p*/,
    bool /*is_causal*/,
    const OptionalTensor& /*mask*/,
    std::optional<double> /*scale*/) {
  return {
      by_token(query, value.size(-1)),
      at::empty(
          {query.size(0), query.size(1), query.size(2)},
          query.options().dtype(at::kFloat))};
}

std::tuple<Tensor, Tensor, Tensor> meta_attention_backward(
    const Tensor& /*grad*/,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& /*out*/,
    const Tensor& /*logsumexp*/,
    double /*dropout_p*/,
    bool /*is_causal*/,
    const OptionalTensor& /*mask*/,
    std::optional<double> /*scale*/) {
  return {
      by_token(query, query.size(-1)),
      by_token(key, key.size(-1)),
      by_token(value, value.size(-1))};
}

// Does nothing, because the op only writes to its arguments.
void fused_adamw(
    at::TensorList /*self*/,
    at::TensorList /*grads*/,
    at::TensorList /*exp_avgs*/,
    at::TensorList /*exp_avg_sqs*/,
    at::TensorList /*max_exp_avg_sqs*/,
    at::TensorList /*state_steps*/,
    double /*lr*/,
    double /*beta1*/,
    double /*beta2*/,
    double /*weight_decay*/,
    double /*eps*/,
    bool /*amsgrad*/,
    bool /*maximize*/,
    const OptionalTensor& /*grad_scale*/,
    const OptionalTensor& /*found_inf*/) {}

// The registered meta kernels. They are kept until the process exits, because a
// torch::Library unregisters its kernels when it is destroyed.
struct MetaKernels {
  torch::Library library{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::Meta,
      __FILE__,
      __LINE__};

  template <class Function>
  void add(const char* name, const char* overload, Function function) {
    const auto full = c10::OperatorName(std::string("aten::") + name, overload);
    const auto op = c10::Dispatcher::singleton().findOp(full);
    if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
      library.impl(c10::toString(full).c_str(), function);
    }
  }

  MetaKernels() {
    add("index_select", "", TORCH_FN(meta_index_select));
    add("embedding_dense_backward", "", TORCH_FN(embedding_dense_backward));
    add("native_layer_norm", "", TORCH_FN(meta_layer_norm));
    add("relu", "", TORCH_FN(meta_relu));
    add("native_layer_norm_backward", "", TORCH_FN(meta_layer_norm_backward));
    add("where", "self", TORCH_FN(meta_where));
    add("where", "self_out", TORCH_FN(where_out));
    add("logsumexp", "", TORCH_FN(meta_logsumexp));
    add("logical_not", "out", TORCH_FN(unary_out));
    add("logical_and", "out", TORCH_FN(binary_out));
    add("logical_or", "out", TORCH_FN(binary_out));
    add("logical_xor", "out", TORCH_FN(binary_out));
    add("flip", "", TORCH_FN(flip));
    add("roll", "", TORCH_FN(meta_roll));
    add("native_dropout", "", TORCH_FN(native_dropout));
    add("native_dropout_backward", "", TORCH_FN(native_dropout_backward));
    add("masked_fill_", "Scalar", TORCH_FN(masked_fill));
    add("masked_fill_", "Tensor", TORCH_FN(masked_fill_tensor));
    add("_scaled_dot_product_flash_attention_for_cpu",
        "",
        TORCH_FN(meta_attention));
    add("_scaled_dot_product_flash_attention_for_cpu_backward",
        "",
        TORCH_FN(meta_attention_backward));
    add("_fused_adamw_", "", TORCH_FN(fused_adamw));
  }
};

} // namespace

void ensure_meta_kernels() {
  static const MetaKernels kernels;
}

} // namespace weft::dtensor
