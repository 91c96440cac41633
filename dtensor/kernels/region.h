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

/// The dim with the samples, for each argument and each result of an op's
/// schema. kReplicated for those that every sample needs.
struct RegionDims {
  static constexpr int64_t kReplicated = -1;
  std::vector<int64_t> arguments;
  std::vector<int64_t> returns;
  /// Arguments that libtorch's modules create as plain tensors. They count as
  /// replicated. All others must be DTensors.
  std::set<size_t> made_by_modules = {};
};

/// Runs the op on the stack as a region. A mesh dim that shards the samples of
/// the first tensor keeps sharding them, unless a rank would have none.
/// Collective: all ranks of the mesh, if inputs must be redistributed.
void run_region(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    const RegionDims& dims,
    const std::string& name);

/// Returns true if a rank of the mesh has no element of the tensor.
bool has_empty_part(const DTensorSpec& spec, c10::IntArrayRef sizes);

/// The kernel of lstm, gru, rnn_tanh and rnn_relu on batches, and of their
/// cells.
void recurrent(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);
void recurrent_cell(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);
/// Like recurrent(), for packed sequences, which cannot have a sharded batch.
void recurrent_packed(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Like at::cat. Plain zeros count as replicated. Above autograd only.
at::Tensor
cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim);

/// Registers the kernels above. Returns their full names.
std::set<std::string> register_regions(
    torch::Library& above,
    torch::Library& below);

/// Registers the kernels of own_tensors.cpp. Returns their full names.
std::set<std::string> register_own_tensors(
    torch::Library& above,
    torch::Library& below);

/// Returns the input of an op that uses `parameter`, on the mesh of `spec`,
/// with the placement that the style defines.
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
