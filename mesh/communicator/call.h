#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/communicator/work.h"

// Note [Order of checks]
// ~~~~~~~~~~~~~~~~~~~~~~
// Every collective checks its arguments before anything is sent, from what all
// ranks of a correct program have alike. A check that fails on one rank alone
// leaves the others waiting until their timeout.

namespace weft::mesh {

/// Creates the flight recorder entry of a collective on `tensor`, which may be
/// undefined.
FlightRecorderEntry
make_call(std::string op, std::string_view name, const at::Tensor& tensor);

/// Hashes what must be identical on all ranks: op, name, dtype, reduction or
/// root, caller and shape. If parts may have different sizes the shape is left
/// out; all_gather and reduce_scatter hash the number of elements.
uint64_t identity_of(const FlightRecorderEntry& call);

int64_t total_bytes(const std::vector<at::Tensor>& tensors);

/// Throws: c10::ValueError if the group's backend cannot move `tensor` or its
/// dtype is not the call's.
void check_tensor(
    const GroupState& group,
    const FlightRecorderEntry& call,
    const at::Tensor& tensor);

/// Throws: c10::ValueError if `op` is not defined for the call's dtype.
void check_op(
    const GroupState& group,
    const FlightRecorderEntry& call,
    ReduceOp op);

/// Throws: c10::ValueError unless there is one movable tensor per rank.
void check_parts(
    const GroupState& group,
    const FlightRecorderEntry& call,
    const std::vector<at::Tensor>& parts);

/// Throws: c10::ValueError if `root` is not in the group.
void check_root(
    const GroupState& group,
    const FlightRecorderEntry& call,
    int64_t root);

} // namespace weft::mesh
