#pragma once

#include <cstdint>
#include <string_view>

#include "dtensor/redistribute/cost_model.h"
#include "mesh/device_mesh.h"

namespace weft::dtensor {

// Note [Overlap within a layer]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A column-parallel linear gathers its input before its product, and backward
// reduces the input's gradient after one; a row-parallel linear does the
// reverse. Two things hide these messages behind arithmetic:
//  - Backward, the gradients of the weights that share a gathered input come
//    after the reduction of its gradient has been started, and before it is
//    waited for. Costs nothing: see Note [Deferred weight gradients].
//  - A gather and the product that needs it, a product and the reduce_scatter
//    that takes it (and backward the gather of that one's gradient), are cut
//    into parts of rows: while one travels, others are multiplied. Costs more
//    messages and smaller products: see Note [Chunked matmul].

/// Selects whether the collectives of tensor-parallel layers overlap with
/// computation.
enum class AsyncTp {
  /// Computes weight gradients during the reduction of the input gradient.
  /// Chunks a matmul if the cost model predicts a gain.
  kAuto,
  /// Chunks every matmul that can be chunked.
  kOn,
  kOff,
};

/// The costs that kAuto uses. They must be identical on all ranks, so that all
/// chunk alike.
struct AsyncTpCosts {
  /// The matmul speed of one rank in 1e12 FLOP/s.
  double tflops = 0;
  /// The fraction of a message's time that computation can hide: 0 if the
  /// computing cores also move the data, 1 if other hardware does.
  double overlap = 0;
};

/// Returns the default costs for a World's backend ("nccl", "cpu", "fake"),
/// like default_link_cost(). They are not measured.
AsyncTpCosts default_async_tp_costs(std::string_view backend);

/// Sets the mode for all meshes with the root of `mesh`. Must be called on all
/// ranks with the same value and between steps, because autograd graphs depend
/// on it.
/// Source: Wang et al., Overlap Communication with Dependent Computation via
/// Decomposition (ASPLOS 2023); Megatron-LM's
/// LinearWithGradAccumulationAndAsyncCommunication;
/// torch/distributed/_symmetric_memory/__init__.py, _fused_all_gather_matmul.
void set_async_tp(const mesh::DeviceMesh& mesh, AsyncTp mode);
/// Like set_async_tp(mesh, mode), with explicit costs. The default is that of
/// the world's backend.
void set_async_tp(
    const mesh::DeviceMesh& mesh,
    AsyncTp mode,
    const AsyncTpCosts& costs);
AsyncTp async_tp(const mesh::DeviceMesh& mesh);

/// A matmul whose rows are all-gathered before it or reduce-scattered after it.
struct CommMatmul {
  /// kAllGather or kReduceScatter, over `ranks` ranks.
  StepKind kind = StepKind::kAllGather;
  int64_t ranks = 1;
  /// The bytes of all rows that move.
  double bytes = 0;
  /// The FLOPs of the matmul of all rows on one rank.
  double flops = 0;
  mesh::LinkCost link;
};

/// Returns the time of the collective and the matmul in microseconds:
/// sequential if `parts` is 0, otherwise with `parts` messages that overlap
/// with the parts of the matmul.
double comm_matmul_us(
    const CommMatmul& product,
    int64_t parts,
    const AsyncTpCosts& costs);

/// Returns the number of messages in which the rows of `product` move while the
/// matmul runs, at most `most`, which is at least 1. 0 means one message before
/// or after the matmul.
int64_t choose_num_chunks(
    const mesh::DeviceMesh& mesh,
    const CommMatmul& product,
    int64_t most);

/// Returns false if choose_num_chunks() always returns 0 on this mesh. Cheap.
bool may_chunk_matmuls(const mesh::DeviceMesh& mesh);

} // namespace weft::dtensor
