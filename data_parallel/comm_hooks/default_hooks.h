#pragma once

#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

// Hooks without a state, by PyTorch's names. Each call makes a hook of its own.

namespace weft::ddp {

/// Averages the bucket: what DDP does without a hook.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
std::shared_ptr<CommHook> allreduce_hook();

/// Sums the bucket; DDP divides.
/// Source: torch/csrc/distributed/c10d/default_comm_hooks.hpp,
/// _AllReduceBySumCommHook.
std::shared_ptr<CommHook> all_reduce_by_sum();

/// Leaves every replica its own gradients, to see how fast training could be
/// without communication. Replicas drift apart.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/debugging_hooks.py.
std::shared_ptr<CommHook> noop_hook();

/// Reduces in half precision: casts, divides by the size of the group, sums,
/// casts back into the bucket. Half of float32's bytes. Float16 overflows
/// above 65504, bfloat16 keeps 8 bits of each value.
/// Throws, when run: c10::ValueError for a bucket that is not of real floating
/// point.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();

/// Gives `inner` a bucket in half precision and casts its result back. Divides
/// if `inner` does; state and names are `inner`'s.
/// Throws: c10::ValueError if there is no `inner`.
std::shared_ptr<CommHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner);
std::shared_ptr<CommHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner);

} // namespace weft::ddp
