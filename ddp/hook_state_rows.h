#pragma once

#include <ATen/core/Tensor.h>

#include "ddp/comm_hook.h"
#include "dtensor/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// A hook's state as bytes: a JSON header with names, dtypes and sizes, behind
/// its length in 8 bytes, then the values. Shape: [n], bytes.
at::Tensor pack_hook_state(const CommHook::State& state);
/// Throws: c10::ValueError if `bytes` is none.
CommHook::State unpack_hook_state(const at::Tensor& bytes);

/// Rows of all ranks, [1, n] each, as one tensor cut over all dims of `mesh`.
at::Tensor as_row(const at::Tensor& row, const mesh::DeviceMesh& mesh);

/// The states of all ranks as tensors of a row a rank, cut over all dims of
/// `mesh`: what a rank keeps is not what another one keeps.
/// Collective: all ranks of `mesh`; blocks.
dtensor::StateDict to_rows(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh);
/// This rank's own.
/// Throws: c10::ValueError if `rows` is of another number of ranks.
CommHook::State from_rows(
    const dtensor::StateDict& rows,
    const mesh::DeviceMesh& mesh);

} // namespace weft::ddp
