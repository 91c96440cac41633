#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "data/find_files.h"

namespace weft::data {

/// A regular file that is mapped into memory for reading.
class MappedFile {
 public:
  /// Throws: DataError if it cannot be opened.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const DataFile& file() const { return file_; }
  std::span<const unsigned char> bytes() const { return {data_, size_}; }

  /// Must be called before reading, because reading beyond the end of a
  /// truncated file kills the process.
  /// Throws: DataError at `offset` if the file has changed since it was opened.
  void check_unchanged(int64_t offset) const;

 private:
  DataFile file_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace weft::data
