#pragma once

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

// Note [Fused ops]
// ~~~~~~~~~~~~~~~~
// What a transformer computes elementwise between its matrix products, in one
// pass over memory forward and one backward: libtorch's kernels would take
// three to a dozen. Each is an op of its own, weft::swiglu and
// weft::rotary_embedding, with an autograd kernel, a sharding rule, a kernel of
// libweft_cuda.so for GPUs, and elsewhere the composed form. RMSNorm is
// libtorch's own op: aten::_fused_rms_norm, which at::rms_norm calls, gets the
// CPU kernel that it lacks. So is attention, whose CPU kernel is one of
// products and of a pass over their rows where oneDNN multiplies
// (matmul/library.h).

/// Computes silu(gate) * up of plain tensors or DTensors of equal dtype and
/// sizes. Saves only its inputs for backward.
/// Throws: c10::ValueError if sizes or dtypes differ.
/// Source: Shazeer, GLU Variants Improve Transformer (2020).
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Applies rotary position embedding in the half-split form: rotates the pairs
/// (x[j], x[j + d / 2]) of each row by the angles whose cosines and sines are
/// in the tables. The result has the strides of x. Saves only the tables for
/// backward.
/// Shapes: x [.., T, d], tables [T, d], d even.
/// Throws: c10::ValueError if sizes do not match or dtypes differ.
/// Source: Su et al., RoFormer (2021); transformers' apply_rotary_pos_emb.
at::Tensor rotary_embedding(
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin);

/// Registers the CPU kernels of RMSNorm. Only the first call in a process has
/// an effect. Thread-safe.
void register_rms_norm();

/// Registers the CPU kernels of attention. Only the first call in a process has
/// an effect. Thread-safe.
void register_attention();

} // namespace weft::dtensor
