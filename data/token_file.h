#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "config/choices.h"
#include "data/find_files.h"

namespace weft::data {

/// The format of a token file: tokens only; llm.c's header of 1 KiB and tokens;
/// Megatron's FILE.bin with its FILE.idx. kAuto selects Megatron if there is an
/// .idx, llm.c if the file begins with one of its magic numbers, and raw
/// otherwise.
using config::TokenFormat;

/// The integer type of the tokens, little-endian.
enum class TokenType { kUint8, kUint16, kInt16, kInt32, kUint32, kInt64 };

int64_t size_bytes(TokenType type);
/// Returns the largest token of the type.
int64_t most(TokenType type);
/// Returns "uint16", ...
std::string to_string(TokenType type);

/// The origin of a token file.
struct TokenOrigin {
  std::string tokenizer;
  std::string fingerprint;
  int64_t vocab_size = 0;
  /// kAuto means unknown.
  TokenFormat format = TokenFormat::kAuto;
  TokenType type = TokenType::kUint16;
  int64_t num_tokens = 0;
  /// The time at which the token file was written.
  int64_t modified_ns = 0;
};

/// Returns the content of `path`.json for the token file `path`, or nothing if
/// there is none.
/// Throws: DataError, naming `path`.json, if `weft tokenize` did not write it.
std::optional<TokenOrigin> read_origin(const std::string& path);

/// A memory-mapped token file. Copies share the mapping. Thread-safe for
/// reading.
class TokenFile {
 public:
  /// Opens `path` and checks that its header matches its content. `type` is for
  /// raw files (default: the type in `path`.json, which `weft tokenize` writes,
  /// otherwise uint16); for other formats it must agree with the header.
  /// Throws: DataError with file and offset.
  static TokenFile open(
      const std::string& path,
      TokenFormat format = TokenFormat::kAuto,
      std::optional<TokenType> type = std::nullopt);

  /// The number of tokens.
  int64_t size() const;
  TokenFormat format() const;
  TokenType type() const;
  const DataFile& file() const;
  /// The offset of token `index` in bytes.
  int64_t offset_bytes(int64_t index) const;
  /// The content of `path`.json. Empty if there is none.
  const std::optional<TokenOrigin>& origin() const;

  /// Fills `out` with the tokens from `index` on.
  /// Throws: c10::ValueError if they are not in [0, size()); DataError with
  /// file and offset, if the file was truncated after it was opened.
  void read(int64_t index, std::span<int64_t> out) const;

  /// Checks all tokens by reading them, unless their type has no larger values,
  /// or the tokenizer that wrote them (see origin()) has none and the file is
  /// unchanged.
  /// Throws: DataError with file and offset, for the first token that is not in
  /// [0, vocab_size).
  void check_below(int64_t vocab_size) const;
  /// Like check_below(), for `tokens` that were read from `index` on.
  void check_tokens_below(
      std::span<const int64_t> tokens,
      int64_t index,
      int64_t vocab_size) const;

 private:
  struct Map;
  std::shared_ptr<const Map> map_;
};

} // namespace weft::data
