#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/save/state_items.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {

/// One rank's report to rank 0 about its part of a save.
struct RankReport {
  /// The reason why the rank could not write. Empty if it has written.
  std::string error;
  /// The hash of what must be identical on all ranks. Ranks with different
  /// hashes cannot save a common checkpoint.
  uint64_t agreement = 0;
  std::vector<WrittenFile> files;
  /// The time that the rank spent writing, in seconds.
  double seconds = 0;
};

/// Serializes a report. A tensor is encoded as its index in `items`, which a
/// reader with an equal `agreement` has, too.
std::string to_bytes(
    const RankReport& report,
    const std::vector<StateItem>& items);
/// Parses the result of to_bytes(). `files` stays empty if the report has
/// another `agreement`.
RankReport report_from_bytes(
    std::string_view bytes,
    const std::vector<StateItem>& items,
    uint64_t agreement);

/// Returns "rank 3 is slow: ..." for the rank that wrote the fewest bytes per
/// second, if it took at least twice the median time, in total and per byte,
/// and at least 0.2 s more. Empty if there is no such rank.
std::string describe_slow_writer(const std::vector<RankReport>& reports);

/// Adds the tensors of `items` to the manifest, without chunks.
void add_tensors(const std::vector<StateItem>& items, Manifest& manifest);
/// Adds the files and chunks that the rank has written.
void add_files(RankReport report, Manifest& manifest);

} // namespace weft::checkpoint
