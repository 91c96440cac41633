#pragma once

#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

// Hooks without a state, by PyTorch's names. Each call makes a hook of its own.

namespace weft::data_parallel {

/// Averages the bucket, as DDP does without a hook.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
std::shared_ptr<CommHook> allreduce_hook();

/// Sums the bucket; DDP divides it.
/// Source: torch/csrc/distributed/c10d/default_comm_hooks.hpp,
/// _AllReduceBySumCommHook.
std::shared_ptr<CommHook> all_reduce_by_sum();

/// Does not communicate: every replica keeps its own gradients, and replicas
/// diverge. Measures how fast training could be without communication.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/debugging_hooks.py.
std::shared_ptr<CommHook> noop_hook();

/// Reduces in float16: casts, divides by the size of the group, sums, and casts
/// back into the bucket. Sends half the bytes of float32. Overflows above
/// 65504.
/// Throws, when run: c10::ValueError for a bucket that is not real floating
/// point.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
std::shared_ptr<CommHook> fp16_compress_hook();
/// Like fp16_compress_hook(), in bfloat16, which keeps 8 bits of each value.
std::shared_ptr<CommHook> bf16_compress_hook();

/// Passes the bucket to `inner` in float16 and casts its result back.
/// divides(), state and names are those of `inner`.
/// Throws: c10::ValueError if `inner` is null.
std::shared_ptr<CommHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner);
/// Like fp16_compress_wrapper(), in bfloat16.
std::shared_ptr<CommHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner);

} // namespace weft::data_parallel
