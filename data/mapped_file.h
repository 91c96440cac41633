#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "data/find_files.h"

namespace weft::recipes {

/// A regular file as it was when it was opened, mapped into memory for reading.
class MappedFile {
 public:
  /// Throws: DataError.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const DataFile& file() const { return file_; }
  std::span<const unsigned char> bytes() const { return {data_, size_}; }

  /// To be called before bytes are read: those behind the end of a file that
  /// became shorter end the process.
  /// Throws: DataError at `offset` unless the file is what it was.
  void check_unchanged(int64_t offset) const;

 private:
  DataFile file_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace weft::recipes
