#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/world.h"

namespace weft::mesh {

/// Who takes part in an agreement, and over what.
struct AgreementContext {
  c10d::Store& store;
  int64_t rank;
  int64_t world_size;
  std::chrono::milliseconds timeout;
};

/// Compares what all ranks give as `values`, in one round. `sequence` is the
/// same on all ranks and new for each comparison. Rank 0 reads a hash of every
/// rank's values, and all of those of the first rank that has others; the
/// others wait for its verdict.
/// Collective: all ranks; blocks.
/// Throws: DisagreementError on every rank, naming the first that differs from
/// rank 0 and the first field in which it does; CommError if not all come in
/// time.
void check_agreement(
    const AgreementContext& context,
    int64_t sequence,
    const std::vector<AgreedValue>& values);

/// Blocks until all ranks have called it.
/// Throws: CommError saying how many came and which ranks did not, if not
/// all do in time.
void rendezvous_barrier(const AgreementContext& context);

} // namespace weft::mesh
