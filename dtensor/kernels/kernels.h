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

/// Computes a matmul. A product with a parameter's t() becomes linear(),
/// because libtorch's C++ nn::Linear computes it like this.
at::Tensor matmul(const at::Tensor& left, const at::Tensor& right);

/// Returns the parameter whose t() this is, or an undefined tensor.
at::Tensor transposed_parameter(const at::Tensor& transposed);

/// Like matmul(), with a bias and 2-D inputs. Above autograd only.
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

/// Like at::embedding_bag. `offsets` may be plain, because nn::EmbeddingBag
/// creates them.
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

/// Returns the spec of the first DTensor on a mesh with at least one dim, to
/// which the tensors of a region are brought. Unplaced if there is none.
DTensorSpec common_spec(std::initializer_list<const at::Tensor*> tensors);

/// A tensor of a call, and whether a parallel style defines its placement if it
/// is plain.
struct Operand {
  const at::Tensor* tensor;
  bool placed_by_style = false;

  Operand(const at::Tensor& operand, bool styled = false)
      : tensor(&operand), placed_by_style(styled) {}
  Operand(const std::optional<at::Tensor>& operand)
      : tensor(operand ? &*operand : nullptr) {}
};

/// Checks that the operands of a kernel are on one mesh, and that plain ones
/// have no dims, are placed by a style, or are in an ImplicitReplication scope.
/// Throws: c10::ValueError naming `op` and all operands.
void check_operands(
    std::string_view op,
    const DTensorSpec& common,
    std::initializer_list<Operand> operands);

/// Registers gradients for which libtorch creates plain tensors. Returns their
/// names.
std::set<std::string> register_gradients(
    torch::Library& above,
    torch::Library& below);

/// Registers _to_copy, see Note [Casts]. Returns its name.
std::set<std::string> register_casts(
    torch::Library& above,
    torch::Library& below);

/// Registers mean losses, above autograd only. See Note [Losses that are
/// means].
void register_mean_losses(torch::Library& above);
/// Registers losses per element (mse, bce, ...) in the same way.
void register_elementwise_losses(torch::Library& above);

/// Returns a plain tensor as a DTensor with `placements` (default: replicated)
/// on the mesh of `like`, or an unplaced DTensor as a replicated one.
at::Tensor place(
    const at::Tensor& tensor,
    const DTensorSpec& like,
    const std::optional<Placements>& placements = std::nullopt);

/// Returns the label of a parameter's op in the flight recorder and in errors.
std::string label(const char* op, const at::Tensor& parameter);

} // namespace kernels
} // namespace weft::dtensor
