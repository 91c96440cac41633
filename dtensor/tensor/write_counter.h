#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Counts the writes to the memory of a local tensor, whichever DTensor they
/// are made through. For those who keep something that they computed from it,
/// where autograd's version counters do not help: a detached tensor has one of
/// its own, and under InferenceMode there are none.
class WriteCounter {
 public:
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

/// The counter of `local`'s memory, which counts while somebody holds it.
/// Lifetime: `local`'s memory must live as long as the counter is held.
std::shared_ptr<const WriteCounter> watch_writes(
    const DTensorSpec& spec,
    const at::Tensor& local);

/// Whether anybody holds a counter on the spec's mesh or its slices.
bool are_writes_watched(const DTensorSpec& spec);

/// Counts a write to `local`'s memory, if anybody holds its counter.
void count_write(const DTensorSpec& spec, const at::Tensor& local);

} // namespace weft::dtensor
