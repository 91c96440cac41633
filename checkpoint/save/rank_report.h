#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/save/state_items.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {

/// What one rank tells the first one of its part of a save.
struct RankReport {
  /// Why it could not write; empty: it has written.
  std::string error;
  /// Hash of what all ranks must save alike: ranks that differ in it have no
  /// checkpoint in common.
  uint64_t agreement = 0;
  std::vector<WrittenFile> files;
  /// How long it wrote.
  double seconds = 0;
};

/// A compact form. Tensors go by their number in `items`, which the reader of
/// an equal `agreement` has too.
std::string to_bytes(
    const RankReport& report,
    const std::vector<StateItem>& items);
/// With `items` of another agreement `files` stays empty.
RankReport report_from_bytes(
    std::string_view bytes,
    const std::vector<StateItem>& items,
    uint64_t agreement);

/// "rank 3 is slow: ..." of the one that wrote the fewest bytes a second, if it
/// took more than twice as long as most, in all and for each byte, and 0.2 s
/// more; empty: none did.
std::string describe_slow_writer(const std::vector<RankReport>& reports);

/// Tensors as `items` say, still without chunks.
void add_tensors(const std::vector<StateItem>& items, Manifest& manifest);
/// What the rank has written.
void add_files(RankReport report, Manifest& manifest);

} // namespace weft::checkpoint
