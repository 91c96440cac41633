#pragma once

#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::data_parallel {

/// Serializes a hook's state: the length of a JSON header in 8 bytes, the
/// header with names, dtypes and sizes, and the values. Shape: [n], bytes.
at::Tensor pack_hook_state(const CommHook::State& state);
/// Parses the result of pack_hook_state().
/// Throws: c10::ValueError if `bytes` is malformed.
CommHook::State unpack_hook_state(const at::Tensor& bytes);

/// Returns the states of all ranks as tensors for a checkpoint. "common" has
/// the entries that are equal on all ranks. "state" and "state_bytes" have one
/// row per rank with its other entries, sharded over all dims of `mesh`; they
/// are omitted if no rank has any.
/// Collective: all ranks of `mesh`; blocks.
dtensor::StateDict to_rows(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh);

/// Returns the saved state of this rank. Tensors may have any placements and
/// may be plain full tensors. On a mesh of another shape than at saving, only
/// entries that were equal on all ranks exist; `not_elsewhere` lists entries
/// that are dropped then.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: c10::ValueError, on all ranks, if other entries differed between
/// ranks.
CommHook::State from_rows(
    const dtensor::StateDict& rows,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& not_elsewhere = {});

/// Returns text as an entry of a state. Shape [n], bytes.
at::Tensor pack_text(const std::string& text);
std::string unpack_text(const at::Tensor& entry);

} // namespace weft::data_parallel
