#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "data/find_files.h"

namespace weft::data {

/// Concatenated text files as one sequence of bytes, which are the tokens.
/// Stores names and sizes only; a read opens the files that it needs and keeps
/// the most recent ones open. Not thread-safe.
class TextCorpus {
 public:
  /// The number of tokens of byte tokenization.
  static constexpr int64_t kVocabSize = 256;

  /// Finds the files (see find_files()) without opening them. `where` is the
  /// start of error messages, e.g. "recipes/x.yaml:9:10: data.paths".
  /// Throws: mesh::UsageError if a path matches nothing or all files are empty.
  explicit TextCorpus(
      const std::vector<std::string>& paths,
      const std::string& where = "data.paths");
  TextCorpus(TextCorpus&&) noexcept;
  TextCorpus& operator=(TextCorpus&&) noexcept;
  ~TextCorpus();

  /// The size of all files in bytes.
  int64_t size() const;
  std::span<const DataFile> files() const;

  /// Fills `out` with the bytes from `offset` on.
  /// Throws: c10::ValueError if they are not in [0, size()); DataError with
  /// file and offset, if a file is gone or has changed since the start.
  void read(int64_t offset, std::span<uint8_t> out);

  /// Returns a fingerprint of all names (without folders) and sizes, which
  /// detects changes in a later run.
  uint64_t fingerprint() const;
  /// The fingerprint as 16 hexadecimal digits.
  std::string fingerprint_text() const;

 private:
  class OpenFiles;

  void read_file(size_t index, int64_t offset, std::span<uint8_t> out);

  std::vector<DataFile> files_;
  /// ends_[i] is the number of bytes of the files 0 to i.
  std::vector<int64_t> ends_;
  std::unique_ptr<OpenFiles> open_files_;
};

} // namespace weft::data
