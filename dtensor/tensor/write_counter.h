#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Counts the writes to the memory of a local tensor through any DTensor. For
/// caches of values computed from it, where autograd's version counters do not
/// suffice: a detached tensor has its own counter, and InferenceMode has none.
class WriteCounter {
 public:
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

/// Returns the counter of `local`'s memory, which counts as long as it is
/// referenced.
/// Lifetime: `local`'s memory must outlive the counter.
std::shared_ptr<const WriteCounter> watch_writes(
    const DTensorSpec& spec,
    const at::Tensor& local);

/// Returns true if a counter on the spec's mesh or its slices is referenced.
bool are_writes_watched(const DTensorSpec& spec);

/// Counts a write to `local`'s memory if its counter is referenced.
void count_write(const DTensorSpec& spec, const at::Tensor& local);

} // namespace weft::dtensor
