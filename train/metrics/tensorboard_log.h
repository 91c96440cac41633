#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "train/metrics/buffered_append_file.h"
#include "train/metrics/metrics_log.h"

namespace weft::train {

/// Returns the masked CRC-32C of a record in an event file.
/// Source: tensorflow/core/lib/io/record_writer.h.
uint32_t masked_crc32c(std::string_view bytes);

/// TensorBoard's event file: one event per step, with the tags that torchtitan
/// uses, so that the same dashboards show both. Every process writes a new
/// file, which TensorBoard joins to the earlier ones.
/// Source: tensorflow/core/util/event.proto, framework/summary.proto.
class TensorBoardLog {
 public:
  /// Creates `folder` and a new file in it. The file begins with an event that
  /// makes TensorBoard drop the events of earlier files from `first_step`
  /// (counted from 1) on. `ranks` is used for "throughput(tps)", which is per
  /// rank as in torchtitan.
  /// Throws: mesh::UsageError if it cannot be written.
  TensorBoardLog(const std::string& folder, int64_t first_step, int64_t ranks);

  /// These functions return messages for the user like BufferedAppendFile.
  std::string write(const StepMetrics& metrics);
  std::string finish() { return file_->finish(); }

  const std::string& path() const { return path_; }

 private:
  std::string write_record(std::string_view bytes);

  std::string path_;
  std::optional<BufferedAppendFile> file_;
  double ranks_;
};

} // namespace weft::train
