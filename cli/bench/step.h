#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::recipes::bench {

/// The flags of bench/peer/train_step.py, with its defaults.
struct StepOptions {
  int64_t dp = 2;
  int64_t tp = 2;
  int64_t dim = 256;
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t kv_heads = 0;
  int64_t ffn_dim = 0;
  int64_t seq = 128;
  int64_t batch = 4;
  int64_t vocab = 256;
  int64_t steps = 30;
  int64_t warmup = 5;
  int64_t sequence_parallel = 1;
  int64_t threads = 1;
  double bucket_mb = 25;
  /// Every other `join` steps run inside a Join, the rest without; 0: none do.
  int64_t join = 0;
  /// So many steps with tp.async off, so many on, so many auto, and again; 0:
  /// all auto.
  int64_t async_tp = 0;
  std::string comm = "auto";
  std::string device = "cpu";
  std::string dtype = "float32";
};

/// Does the peer script's work: random tokens, mean loss, backward, AdamW
/// without clipping, the loss read each step. On rank 0 returns one line of
/// JSON with the peer's keys, and how long each phase of the start took;
/// nothing on the others.
/// Collective: dp * tp ranks.
/// Throws: mesh::UsageError if the device cannot be used.
std::optional<std::string> run_step(const StepOptions& options);

} // namespace weft::recipes::bench
