#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "tokenizers/tokenizer.h"

namespace weft::recipes {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string output;
  TokenFormat format = TokenFormat::kRaw;
  /// Default: uint16 if the vocabulary fits, else what the format has.
  std::optional<TokenType> type = std::nullopt;
  /// Put the tokenizer's begin and end tokens around every document.
  bool bos = false;
  bool eos = false;
  /// Cuts files into documents, and is no part of them; empty: every file is
  /// one.
  std::string document_separator = {};
  /// Replace what is there under the name of `output`, `output`.json and its
  /// .idx, also where no earlier call wrote it.
  bool force = false;
};

struct TokenizeProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
};

/// Writes the tokens of all documents end to end, and beside them, as
/// `output`.json, what they come from. Replaces an earlier output of the same
/// name, which `output`.json tells, and an index of it that is none any more.
/// Empty documents are none. Calls `show` now and then and at the end.
/// Throws: mesh::UsageError; DataError, with file and offset, for text that is
/// not UTF-8.
TokenizeProgress tokenize(
    const Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(const TokenizeProgress&)>& show = {});

} // namespace weft::recipes
