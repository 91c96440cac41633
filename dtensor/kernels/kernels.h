#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace torch {
class Library;
} // namespace torch

// Note [Kernels above autograd]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Redistributing below autograd alone would make autograd save the input as it
// was, and gather it once for each of q, k and v, forward and backward. So the
// composite ops that a transformer spends its time in have kernels at
// AutogradPrivateUse3: they bring their inputs, differentiably, to where the
// op can run on local tensors, run libtorch's own op (and autograd) on those,
// and wrap the result. What the parameter's style asks for is read from its
// ParameterInfo. An unmodified nn::Linear reaches them.

namespace weft::dtensor {

namespace kernels {

at::Tensor linear(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias);

/// A product with a parameter's t() is linear(): what libtorch's C++
/// nn::Linear computes.
at::Tensor matmul(const at::Tensor& left, const at::Tensor& right);

/// The parameter whose t() this is, or an undefined tensor.
at::Tensor transposed_parameter(const at::Tensor& transposed);

/// The same with a bias, for two-dimensional inputs. Above autograd only.
at::Tensor addmm(
    c10::DispatchKeySet keys,
    const at::Tensor& bias,
    const at::Tensor& left,
    const at::Tensor& right,
    const at::Scalar& beta,
    const at::Scalar& alpha);

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& indices,
    c10::SymInt padding_idx,
    bool scale_grad_by_freq,
    bool sparse);

/// `offsets` may be plain: nn::EmbeddingBag makes them.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset,
    std::optional<int64_t> padding_idx);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
embedding_bag_unpadded(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset);

at::Tensor rms_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    std::optional<double> eps);

at::Tensor layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool cudnn_enable);

at::Tensor scaled_dot_product_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa);

at::Tensor cross_entropy_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    c10::SymInt ignore_index,
    double label_smoothing);

at::Tensor value_selecting_reduction_backward(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& indices,
    c10::SymIntArrayRef sizes,
    bool keepdim);

at::Tensor one_hot(const at::Tensor& self, int64_t num_classes);

/// The first DTensor's spec that lies on a mesh of one dim or more; what a
/// region's tensors are brought to. Unplaced if there is none.
DTensorSpec common_spec(std::initializer_list<const at::Tensor*> tensors);

/// A tensor of a call, and whether a style says how it lies if it is plain.
struct Operand {
  const at::Tensor* tensor;
  bool placed_by_style = false;

  Operand(const at::Tensor& operand, bool styled = false)
      : tensor(&operand), placed_by_style(styled) {}
  Operand(const std::optional<at::Tensor>& operand)
      : tensor(operand ? &*operand : nullptr) {}
};

/// What every kernel asks first: that its operands lie on one mesh, and that
/// plain ones are of no dims, placed by a style, or inside an
/// ImplicitReplication scope.
/// Throws: c10::ValueError naming `op` and all operands.
void check_operands(
    std::string_view op,
    const DTensorSpec& common,
    std::initializer_list<Operand> operands);

/// Gradients for which libtorch makes plain tensors; returns their names.
std::set<std::string> register_gradients(
    torch::Library& above,
    torch::Library& below);

/// _to_copy, see Note [Casts]; returns its name.
std::set<std::string> register_casts(
    torch::Library& above,
    torch::Library& below);

/// Above autograd alone, see Note [Losses that are means].
void register_mean_losses(torch::Library& above);
/// The same for losses of every element (mse, bce, ...).
void register_elementwise_losses(torch::Library& above);

/// A plain tensor as a DTensor that lies as `placements` say (default:
/// replicated) on `like`'s mesh; an unplaced DTensor as a replicated one.
at::Tensor place(
    const at::Tensor& tensor,
    const DTensorSpec& like,
    const std::optional<Placements>& placements = std::nullopt);

/// The label of a parameter's op in ledgers and errors.
std::string label(const char* op, const at::Tensor& parameter);

} // namespace kernels
} // namespace weft::dtensor
