#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::recipes::bench {

/// A model of `layers` square linear layers without bias.
struct DeferredMemoryOptions {
  int64_t layers = 8;
  int64_t dim = 8192;
  int64_t threads = 1;
};

/// What the rank that grew most needed.
struct DeferredMemory {
  int64_t rank = 0;
  int64_t world_size = 0;
  int64_t model_bytes = 0;
  /// One rank's part of the model.
  int64_t shard_bytes = 0;
  /// Growth of the process's peak resident memory.
  int64_t growth_bytes = 0;

  double ratio() const {
    return static_cast<double>(growth_bytes) / static_cast<double>(shard_bytes);
  }
};

/// Builds the model inside DeferredInit, cuts every weight over all ranks,
/// materializes it, and measures how far the peak of the resident memory rose
/// above what was there before.
/// Collective: all ranks of the launched world.
DeferredMemory measure_deferred_memory(const DeferredMemoryOptions& options);

/// The same as one line of JSON on rank 0, nothing on the others.
/// Collective: all ranks of the launched world.
std::optional<std::string> run_deferred_memory(
    const DeferredMemoryOptions& options);

} // namespace weft::recipes::bench
