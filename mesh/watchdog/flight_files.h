#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/watchdog/flight_record.h"

namespace weft::mesh {

/// Where write_flight_record() left its two files.
struct FlightFiles {
  /// <prefix><rank>, as PyTorch's analyzer wants it: a pickle of the JSON's
  /// plain values. One folder of such files, one a rank, is for
  /// `python -m torch.distributed.flight_recorder.fr_trace FOLDER`.
  std::string trace;
  /// The JSON itself, under a name that the analyzer passes over: "rank_3" has
  /// "rank3.json" beside it, a prefix without a separator "3.json".
  std::string json;
};

/// Writes both files; readers see all of one or what was there before. Makes
/// the folder. A prefix that ends in '/' is a folder: "rank_" is added.
/// Throws: std::system_error naming the path.
FlightFiles write_flight_record(
    const std::vector<GroupRecord>& groups,
    int64_t rank,
    const std::string& prefix);

/// `configured`, else TORCH_FR_DUMP_TEMP_FILE, else
/// TORCH_NCCL_DEBUG_INFO_TEMP_FILE, else "".
std::string flight_record_prefix(const std::string& configured = {});

} // namespace weft::mesh
