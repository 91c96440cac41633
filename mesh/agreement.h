#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/world.h"

namespace weft::mesh {

/// The participants of an agreement and the store it uses.
struct AgreementContext {
  c10d::Store& store;
  int64_t rank;
  int64_t world_size;
  std::chrono::milliseconds timeout;
};

/// Compares the `values` of all ranks in one round. `sequence` must be equal on
/// all ranks and new for each comparison. Rank 0 compares a hash of every
/// rank's values and reads the values of the first rank that differs.
/// Collective: all ranks; blocks.
/// Throws: DisagreementError on every rank if a rank differs from rank 0,
/// naming the first such rank and field; CommError if a rank does not arrive in
/// time.
void check_agreement(
    const AgreementContext& context,
    int64_t sequence,
    const std::vector<AgreedValue>& values);

/// Store barrier.
/// Collective: all ranks; blocks.
/// Throws: CommError if a rank does not arrive within the timeout; it lists the
/// missing ranks.
void rendezvous_barrier(const AgreementContext& context);

} // namespace weft::mesh
