#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::recipes::bench {

/// A Llama's shape, and the mesh it is imagined on; by default 405 billion
/// parameters on 16,384 ranks.
struct SavePlanOptions {
  int64_t ranks = 16384;
  int64_t dp = 2048;
  int64_t tp = 8;
  /// The moments are cut over so many data-parallel ranks; 1: not at all.
  int64_t zero = 1;
  int64_t layers = 126;
  int64_t dim = 16384;
  int64_t ffn_dim = 53248;
  int64_t heads = 128;
  int64_t kv_heads = 8;
  int64_t vocab = 128256;
  /// Where the manifest is written; empty: the system's temporary folder.
  std::string folder = {};
};

/// Plans the save of a Llama's parameters, both moments and step counts on
/// ranks that are imagined, and merges what all of them would report into a
/// manifest, in one process. Returns one line of JSON:
///   tensors, state_gb.
///   plan_first_s: one rank's plan, its own part of it, and the hash by which
///     ranks compare what they save; plan_cached_s: the same at the next save.
///   rank_bytes_max, rank_bytes_mean: of tensors that a rank writes, over all.
///   report_bytes_max, report_bytes_sum: what ranks send to the first.
///   merge_s: what the first rank makes of that; manifest_s: check and write;
///     manifest_mb, chunks.
///   peak_mb: of this process, which holds all reports at once as rank 0 does.
/// Throws: mesh::UsageError if the numbers do not fit.
std::optional<std::string> run_save_plan(const SavePlanOptions& options);

} // namespace weft::recipes::bench
