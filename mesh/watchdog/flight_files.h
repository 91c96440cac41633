#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/watchdog/flight_record.h"

namespace weft::mesh {

/// The two files that write_flight_record() wrote.
struct FlightFiles {
  /// <prefix><rank>, in the format of PyTorch's analyzer: a pickle of the
  /// JSON's values. `python -m torch.distributed.flight_recorder.fr_trace
  /// FOLDER` reads a folder with one such file per rank.
  std::string trace;
  /// A JSON copy, under a name that the analyzer ignores: "rank_3.json" for
  /// "rank_3", "3.json" for a prefix without a separator.
  std::string json;
};

/// Writes the files of FlightFiles atomically and creates their folder. A
/// `prefix` that ends in '/' is a folder; the names of its files then begin
/// with "rank_". Throws: std::system_error naming the path.
FlightFiles write_flight_record(
    const std::vector<GroupRecord>& groups,
    int64_t rank,
    const std::string& prefix);

/// Returns `configured` if it is not empty, otherwise TORCH_FR_DUMP_TEMP_FILE,
/// otherwise TORCH_NCCL_DEBUG_INFO_TEMP_FILE, otherwise "".
std::string flight_record_prefix(const std::string& configured = {});

} // namespace weft::mesh
