#pragma once

#include <string>
#include <string_view>

namespace weft::train {

/// An append-only file. Data that cannot be written, for example to a full
/// disk, stays buffered in memory, so that logging never ends a run.
class BufferedAppendFile {
 public:
  /// Opens `path` for appending and creates it if it is missing.
  /// Throws: mesh::UsageError if `path` cannot be opened; it has output_dir,
  /// the path and the reason.
  explicit BufferedAppendFile(std::string path);
  ~BufferedAppendFile();
  BufferedAppendFile(const BufferedAppendFile&) = delete;
  BufferedAppendFile& operator=(const BufferedAppendFile&) = delete;

  /// Writes `bytes` to the kernel or buffers them. Returns a message for the
  /// user when writing starts to fail or works again, otherwise "".
  std::string append(std::string_view bytes);
  /// Tries once more to write the buffered data. Returns a message about the
  /// lost bytes, or "" if none are lost.
  std::string finish();

 private:
  bool write_waiting();

  std::string path_;
  int fd_ = -1;
  int error_ = 0;
  std::string waiting_;
};

} // namespace weft::train
