#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "train/metrics/buffered_append_file.h"
#include "train/metrics/metrics_log.h"

namespace weft::recipes {

/// The masked CRC-32C that frames a record of an event file.
/// Source: tensorflow/core/lib/io/record_writer.h.
uint32_t masked_crc32c(std::string_view bytes);

/// TensorBoard's event file: one event a step with the step's numbers under
/// the tags that torchtitan uses, so that the same dashboards show both. Every
/// process starts a file of its own, which TensorBoard joins to those before.
/// Source: tensorflow/core/util/event.proto, framework/summary.proto.
class TensorBoardLog {
 public:
  /// Makes `folder` and a new file in it, and says in it that what files
  /// before hold of `first_step` (counted from 1) and later no longer counts.
  /// `ranks`: "throughput(tps)" is per rank, as torchtitan's.
  /// Throws: mesh::UsageError if it cannot be written.
  TensorBoardLog(const std::string& folder, int64_t first_step, int64_t ranks);

  /// Both return what the user should know, as BufferedAppendFile; mostly
  /// nothing.
  std::string write(const StepMetrics& metrics);
  std::string finish() { return file_->finish(); }

  const std::string& path() const { return path_; }

 private:
  std::string write_record(std::string_view bytes);

  std::string path_;
  std::optional<BufferedAppendFile> file_;
  double ranks_;
};

} // namespace weft::recipes
