// Under weftrun: no rank needs more than its part of a model of 256 MiB.

#include <cstdint>
#include <cstdio>

#include "cli/bench/benches.h"

int main() {
  using weft::cli::bench::measure_deferred_memory;
  const auto result =
      measure_deferred_memory({.layers = 4, .dim = 4096, .threads = 1});
  // Beside the parts: what threads and libraries touch meanwhile.
  constexpr int64_t kSlack = int64_t{4} << 20;
  const bool holds =
      result.world_size > 1 &&
      result.shard_bytes * result.world_size == result.model_bytes &&
      static_cast<double>(result.growth_bytes - kSlack) <=
          1.1 * static_cast<double>(result.shard_bytes);
  std::printf(
      "rank %lld: %.1f MiB grown, %.1f MiB held\n",
      static_cast<long long>(result.rank),
      static_cast<double>(result.growth_bytes) / (1 << 20),
      static_cast<double>(result.shard_bytes) / (1 << 20));
  return holds ? 0 : 1;
}
