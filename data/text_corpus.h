#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "data/find_files.h"

namespace weft::recipes {

/// Text files end to end as one sequence of bytes, which are the tokens. Holds
/// names and sizes only: a read opens the files that it touches and keeps the
/// latest few open. Not for several threads at once.
class TextCorpus {
 public:
  /// The tokens of a byte are 0 to 255.
  static constexpr int64_t kVocabSize = 256;

  /// Finds the files (see find_files) without opening them. `where` begins
  /// error messages, e.g. "recipes/x.yaml:9:10: data.paths".
  /// Throws: mesh::UsageError if a path names nothing or all is empty.
  explicit TextCorpus(
      const std::vector<std::string>& paths,
      const std::string& where = "data.paths");
  TextCorpus(TextCorpus&&) noexcept;
  TextCorpus& operator=(TextCorpus&&) noexcept;
  ~TextCorpus();

  /// Units: bytes, of all files.
  int64_t size() const;
  std::span<const DataFile> files() const;

  /// Fills `out` with the bytes from `offset` on.
  /// Throws: c10::ValueError if that is not inside [0, size()); DataError,
  /// with file and offset, if a file is gone or changed since the start.
  void read(int64_t offset, std::span<uint8_t> out);

  /// Of all names (without their folders) and sizes: tells whether a later run
  /// has the same files.
  uint64_t fingerprint() const;
  /// 16 hexadecimal digits.
  std::string fingerprint_text() const;

 private:
  class OpenFiles;

  void read_file(size_t index, int64_t offset, std::span<uint8_t> out);

  std::vector<DataFile> files_;
  /// ends_[i]: how many bytes the files 0 to i have together.
  std::vector<int64_t> ends_;
  std::unique_ptr<OpenFiles> open_files_;
};

} // namespace weft::recipes
