#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace weft::data {

/// Writes a token file under a temporary name and renames it when it is
/// complete.
class TokenWriter {
 public:
  /// `format` must not be kAuto. `force` allows to replace any existing files;
  /// otherwise only those of an earlier writer are replaced.
  /// Throws: mesh::UsageError.
  TokenWriter(
      std::string path,
      TokenFormat format,
      TokenType type,
      bool force = false);
  /// Removes an incomplete file.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void add(std::span<const int64_t> tokens);
  /// Ends a document with the tokens since the last call.
  void end_document();
  /// Completes the file. `origin` describes the tokens; their number and type
  /// are filled in.
  void finish(TokenOrigin origin);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }

 private:
  [[noreturn]] void fail(const std::string& path) const;
  void write(const void* data, size_t size);
  std::string temporary(const std::string& path) const;
  void write_header(int64_t num_tokens);
  void write_index() const;
  void write_origin(TokenOrigin origin) const;
  void remove_stale_index() const;

  std::string path_;
  TokenFormat format_;
  TokenType type_;
  /// True if there is an index of a previous file, with which the new tokens
  /// would be misread.
  bool has_stale_index_ = false;
  std::FILE* file_ = nullptr;
  std::vector<unsigned char> buffer_;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t document_begin_ = 0;
  std::vector<int32_t> lengths_;
};

/// Returns the type for tokens of a vocabulary of `vocab_size` in a file of
/// `format`. Empty if the format has none.
std::optional<TokenType> type_for(TokenFormat format, int64_t vocab_size);

} // namespace weft::data
