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

/// Whether the collectives of tensor-parallel layers overlap with arithmetic.
enum class AsyncTp {
  /// Weights' gradients come late; products are cut into parts where the
  /// prices say that it saves time.
  kAuto,
  /// All products are cut that can be.
  kOn,
  kOff,
};

/// What kAuto weighs. The same on all ranks, so that they cut alike.
struct AsyncTpCosts {
  /// 1e12 floating-point operations a second of one rank's products.
  double tflops = 0;
  /// The share of a message's time that arithmetic can hide: 0 where the cores
  /// that compute also move the values, 1 where something else does.
  double overlap = 0;
};

/// Of a World's backend ("nccl", "cpu", "fake"), as default_link_cost(): not
/// measured.
AsyncTpCosts default_async_tp_costs(std::string_view backend);

/// From now on for all meshes with `mesh`'s root. To be called on all ranks
/// with one value, between steps: the graph remembers.
/// Source: Wang et al., Overlap Communication with Dependent Computation via
/// Decomposition (ASPLOS 2023); Megatron-LM's
/// LinearWithGradAccumulationAndAsyncCommunication;
/// torch/distributed/_symmetric_memory/__init__.py, _fused_all_gather_matmul.
void set_async_tp(const mesh::DeviceMesh& mesh, AsyncTp mode);
/// The same with prices; default: those of the world's backend.
void set_async_tp(
    const mesh::DeviceMesh& mesh,
    AsyncTp mode,
    const AsyncTpCosts& costs);
AsyncTp async_tp(const mesh::DeviceMesh& mesh);

/// A product whose rows are gathered before, or reduced and scattered after.
struct CommMatmul {
  /// kAllGather or kReduceScatter, over `ranks` ranks.
  StepKind kind = StepKind::kAllGather;
  int64_t ranks = 1;
  /// Of all rows that move.
  double bytes = 0;
  /// Of the product of all rows on one rank.
  double flops = 0;
  mesh::LinkCost link;
};

/// Microseconds of both, one after the other if `parts` is 0, else in so many
/// messages with parts of the product beside them.
double comm_matmul_us(
    const CommMatmul& product,
    int64_t parts,
    const AsyncTpCosts& costs);

/// In how many messages the rows of `product` are to travel beside it; 0: in
/// one, before or after it. At most `most`, which is 1 or more.
int64_t choose_num_chunks(
    const mesh::DeviceMesh& mesh,
    const CommMatmul& product,
    int64_t most);

/// Whether choose_num_chunks() may say anything but 0 on this mesh. Cheap.
bool may_chunk_matmuls(const mesh::DeviceMesh& mesh);

} // namespace weft::dtensor
