#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace weft::recipes {

/// Writes a file of tokens, whose name it gets when it is whole.
class TokenWriter {
 public:
  /// `format` is not kAuto. With `force`, files that are in the way are
  /// replaced whatever they are, else only those of an earlier writer.
  /// Throws: mesh::UsageError.
  TokenWriter(
      std::string path,
      TokenFormat format,
      TokenType type,
      bool force = false);
  /// Removes what is not whole.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void add(std::span<const int64_t> tokens);
  /// The tokens since the last one are a document.
  void end_document();
  /// `origin` tells where the tokens come from; their number and type are
  /// filled in.
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
  /// An index of what `path_` was: with it, the tokens would not be read as
  /// what they are.
  bool has_stale_index_ = false;
  std::FILE* file_ = nullptr;
  std::vector<unsigned char> buffer_;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t document_begin_ = 0;
  std::vector<int32_t> lengths_;
};

/// The type that `vocab_size` tokens take in a file of `format`; nullopt: the
/// format has none.
std::optional<TokenType> type_for(TokenFormat format, int64_t vocab_size);

} // namespace weft::recipes
