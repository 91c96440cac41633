#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::recipes::bench {

struct CollectiveOptions {
  /// Names of Communicator's methods; empty: all that are measured.
  std::vector<std::string> ops;
  /// Bytes of a rank's largest tensor: what all_gather gives, what
  /// reduce_scatter takes. Empty: 1 KiB to 64 MiB, in steps of four.
  std::vector<uint64_t> sizes;
  /// "auto" (every transport in turn), "gloo" or "shm".
  std::string backend = "auto";
  /// "float32", "float64", "bfloat16", "float16", "int32" or "int64".
  std::string dtype = "float32";
  int64_t rounds = 11;
};

/// The collectives that are measured.
const std::vector<std::string>& collective_names();

/// Times collectives over all ranks of the job, on each transport in turn in
/// the same processes. On rank 0 one line of JSON: for each op and size the
/// median, least and most microseconds of a call over the rounds, each round
/// the slowest rank's, and, with both transports, how many times gloo's time
/// shm's is. Nothing on other ranks.
/// Collective: all ranks of the job, at least two, of one host.
/// Throws: mesh::UsageError for one rank, several hosts, or a transport that
/// cannot be had.
std::optional<std::string> run_collective(const CollectiveOptions& options);

} // namespace weft::recipes::bench
