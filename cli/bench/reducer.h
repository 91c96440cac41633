#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::recipes::bench {

/// The flags of bench/peer/reducer.py, with its defaults.
struct ReducerOptions {
  /// Of the square linear layers, each of which has a weight and a bias.
  std::vector<int64_t> widths{64, 256};
  int64_t layers = 100;
  int64_t batch = 32;
  int64_t rounds = 60;
  int64_t warmup = 10;
  int64_t threads = 1;
  double bucket_mb = 25;
  /// zero_grad() keeps the gradients' memory instead of giving it up, which is
  /// its default.
  bool keep_gradients = false;
};

/// Times backward of a stack of linear layers with DDP over all ranks against
/// plain backward of the same model, in turn: `w<width>_plain_ms` and
/// `w<width>_ddp_ms`, medians, and `w<width>_ratio`, the median of each round's
/// ratio. One line of JSON on rank 0; nothing on the others.
/// Collective: all ranks of the job.
std::optional<std::string> run_reducer(const ReducerOptions& options);

} // namespace weft::recipes::bench
