#pragma once

#include <string>
#include <string_view>

namespace weft::recipes {

/// A file that grows while a run goes on, and that must not end the run: what
/// cannot be written, e.g. to a full disk, waits in memory until it can be.
class BufferedAppendFile {
 public:
  /// Opens `path` to append to it; makes it if it is missing.
  /// Throws: mesh::UsageError naming output_dir, the path and the reason.
  explicit BufferedAppendFile(std::string path);
  ~BufferedAppendFile();
  BufferedAppendFile(const BufferedAppendFile&) = delete;
  BufferedAppendFile& operator=(const BufferedAppendFile&) = delete;

  /// With the kernel when it returns, or waiting. Returns a sentence for the
  /// user when writing begins to fail or works again; otherwise nothing.
  std::string append(std::string_view bytes);
  /// Tries once more. Returns a sentence on what is lost; mostly nothing.
  std::string finish();

 private:
  bool write_waiting();

  std::string path_;
  int fd_ = -1;
  int error_ = 0;
  std::string waiting_;
};

} // namespace weft::recipes
