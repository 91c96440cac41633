#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/text_corpus.h"
#include "data/token_file.h"

namespace weft::data {

/// A sequence of tokens from which samples are taken.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  /// Fills `out` with the tokens from `index` on.
  /// Throws: c10::ValueError if they are not in [0, size()); DataError with
  /// file and offset, if they cannot be read.
  virtual void read(int64_t index, std::span<int64_t> out) = 0;

  virtual std::string fingerprint_text() const = 0;
  /// Returns "84.2 MB of text".
  virtual std::string describe() const = 0;
};

/// The bytes of text files.
class ByteTokens : public TokenSource {
 public:
  explicit ByteTokens(TextCorpus corpus);

  int64_t size() const override;
  void read(int64_t index, std::span<int64_t> out) override;
  std::string fingerprint_text() const override;
  std::string describe() const override;

 private:
  TextCorpus corpus_;
  std::vector<uint8_t> bytes_;
};

/// Concatenated token files.
class FileTokens : public TokenSource {
 public:
  struct Options {
    TokenFormat format = TokenFormat::kAuto;
    std::optional<TokenType> type = std::nullopt;
    /// The bound that all tokens must be below.
    int64_t vocab_size = 0;
  };

  /// Finds the files (see find_files(); names that end in .idx or .json are
  /// skipped), opens and checks all. `where` is the start of error messages on
  /// paths.
  /// Throws: mesh::UsageError if a path matches nothing; DataError with file
  /// and offset, for a file that is damaged or has a token that is too large.
  FileTokens(
      const std::vector<std::string>& paths,
      const Options& options,
      const std::string& where = "data.paths");

  int64_t size() const override;
  void read(int64_t index, std::span<int64_t> out) override;
  std::string fingerprint_text() const override;
  std::string describe() const override;

  std::span<const TokenFile> files() const { return files_; }

 private:
  int64_t vocab_size_;
  std::vector<TokenFile> files_;
  /// ends_[i] is the number of tokens of the files 0 to i.
  std::vector<int64_t> ends_;
};

} // namespace weft::data
