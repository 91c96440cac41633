#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/spec/spec.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/parameter_info.h"

namespace torch {
class Library;
} // namespace torch

// What a style asks of an op that uses a parameter.

namespace weft::dtensor::kernels {

// Note [Regions]
// ~~~~~~~~~~~~~~
// Some of libtorch's composite ops make plain tensors of their own on the way
// (LSTM its states, embedding_bag its offsets), or are easier told as a whole
// than by their pieces. They run as a region: their inputs are brought,
// differentiably, to where each sample lies on one rank; libtorch's own op and
// autograd run on those local tensors; and the results are DTensors again.

/// For each argument of an op's schema, and each of its returns, which dim
/// holds the samples; kReplicated for those that every sample needs.
struct RegionDims {
  static constexpr int64_t kReplicated = -1;
  std::vector<int64_t> arguments;
  std::vector<int64_t> returns;
  /// Arguments that libtorch's modules make themselves, as plain tensors: they
  /// count as whole. Others have to be DTensors.
  std::set<size_t> made_by_modules = {};
};

/// Runs the op whose arguments lie on the stack as a region. A mesh dim that
/// cuts the samples of the first tensor that has some keeps cutting them,
/// unless a rank would have none.
/// Collective: all ranks of the mesh, if inputs have to move.
void run_region(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    const RegionDims& dims,
    const std::string& name);

/// Whether some rank of the mesh has no element of a tensor.
bool has_empty_part(const DTensorSpec& spec, c10::IntArrayRef sizes);

/// lstm, gru, rnn_tanh, rnn_relu on batches, and their cells.
void recurrent(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);
void recurrent_cell(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);
/// The same on packed sequences, which a cut batch does not have.
void recurrent_packed(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Takes plain zeros for whole. Above autograd only.
at::Tensor
cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim);

/// Registers those; returns their full names.
std::set<std::string> register_regions(
    torch::Library& above,
    torch::Library& below);

/// Registers the kernels of own_tensors.cpp; returns their full names.
std::set<std::string> register_own_tensors(
    torch::Library& above,
    torch::Library& below);

/// The input of an op that uses `parameter`, on the mesh of `spec`, where the
/// style wants it.
inline at::Tensor place_as(
    const at::Tensor& input,
    const DTensorSpec& spec,
    const OpLayout& layout,
    const char* op,
    const at::Tensor& parameter) {
  const auto placed = place(input, spec, layout.input);
  return layout.desired_input
             ? redistribute_to(
                   placed,
                   spec.with(normalized(*layout.desired_input, placed.dim())),
                   label(op, parameter))
             : placed;
}

} // namespace weft::dtensor::kernels
