#pragma once

#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// A hook's state as bytes: a JSON header with names, dtypes and sizes, behind
/// its length in 8 bytes, then the values. Shape: [n], bytes.
at::Tensor pack_hook_state(const CommHook::State& state);
/// Throws: c10::ValueError if `bytes` is none.
CommHook::State unpack_hook_state(const at::Tensor& bytes);

/// The states of all ranks, as tensors for a checkpoint. "common": the entries
/// that all ranks have alike, the same on each. "state" and "state_bytes": a
/// row a rank with its other entries, cut over all dims of `mesh`; left out
/// where no rank has any.
/// Collective: all ranks of `mesh`; blocks.
dtensor::StateDict to_rows(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh);

/// What of this was saved for this rank. Tensors may be placed anyhow, also
/// plain and whole. On a mesh of another shape than the one that they were
/// saved on there are only the entries that all ranks had alike.
/// Collective: all ranks of `mesh`; blocks.
/// `not_elsewhere` names entries that are left out there.
/// Throws: c10::ValueError, on all ranks, if other entries are some ranks' own.
CommHook::State from_rows(
    const dtensor::StateDict& rows,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& not_elsewhere = {});

/// Text as an entry of a state. Shape [n], bytes.
at::Tensor pack_text(const std::string& text);
std::string unpack_text(const at::Tensor& entry);

} // namespace weft::ddp
