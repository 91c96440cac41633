#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "elastic/quorum.h"
#include "train/metrics/buffered_append_file.h"

namespace weft::train {

/// A line of quorum.jsonl.
struct QuorumEntry {
  /// Its steps are counted from 1, as in metrics.jsonl.
  elastic::Quorum quorum;
  /// Unit: seconds since 1970.
  double time = 0;
};

/// The lines of a quorum.jsonl.
struct QuorumHistory {
  std::vector<QuorumEntry> entries;
  /// The number of lines that are none, such as an incomplete last one.
  int64_t unreadable = 0;

  /// Reads a file. One that is missing has no lines.
  static QuorumHistory read(const std::string& path);
};

/// Returns the line of quorum.jsonl, without the line feed.
std::string quorum_line(const QuorumEntry& entry);

/// The file quorum.jsonl of an elastic run: a line for each time that other
/// replica groups train than before. It exists from the first line on.
class QuorumLog {
 public:
  /// Takes the path of the file. With `is_new_run` an earlier file is deleted.
  QuorumLog(std::string path, bool is_new_run);

  /// Writes those of `entries` that are newer than the last line of the file.
  /// Returns messages for the user like BufferedAppendFile.
  std::string write(const std::vector<QuorumEntry>& entries);

 private:
  std::string path_;
  std::unique_ptr<BufferedAppendFile> file_;
  elastic::Quorum last_;
};

} // namespace weft::train
