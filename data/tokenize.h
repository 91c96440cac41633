#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "tokenizers/tokenizer.h"

namespace weft::data {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string output;
  TokenFormat format = TokenFormat::kRaw;
  /// The type of the tokens. The default is uint16 if the vocabulary fits,
  /// otherwise that of the format.
  std::optional<TokenType> type = std::nullopt;
  /// Adds the tokenizer's begin or end token to every document.
  bool bos = false;
  bool eos = false;
  /// The string that separates documents in a file; it is not part of them.
  /// Empty means that every file is one document.
  std::string document_separator = {};
  /// Replaces existing files with the names of `output`, `output`.json and its
  /// .idx, even if no earlier call wrote them.
  bool force = false;
};

struct TokenizeProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
};

/// Writes the tokens of all documents, concatenated, and their origin as
/// `output`.json. Replaces an earlier output of the same name, which it
/// recognizes by `output`.json, and its index. Empty documents are skipped.
/// Calls `show` regularly and at the end.
/// Throws: mesh::UsageError; DataError with file and offset, for text that is
/// not UTF-8.
TokenizeProgress tokenize(
    const tokenizers::Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(const TokenizeProgress&)>& show = {});

} // namespace weft::data
