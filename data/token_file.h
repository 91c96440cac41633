#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/find_files.h"

namespace weft::recipes {

/// How tokens lie in a file: nothing but tokens; llm.c's header of 1 KiB before
/// them; Megatron's FILE.bin with its FILE.idx. kAuto: Megatron if there is an
/// .idx, llm.c if the file begins with one of its magic numbers, else raw.
enum class TokenFormat { kAuto, kRaw, kLlmC, kMegatron };

/// Little-endian integers.
enum class TokenType { kUint8, kUint16, kInt16, kInt32, kUint32, kInt64 };

int64_t size_bytes(TokenType type);
/// The largest token of the type.
int64_t most(TokenType type);
/// "uint16".
std::string to_string(TokenType type);
std::string to_string(TokenFormat format);

/// What wrote a file of tokens.
struct TokenOrigin {
  std::string tokenizer;
  std::string fingerprint;
  int64_t vocab_size = 0;
  /// kAuto: not said.
  TokenFormat format = TokenFormat::kAuto;
  TokenType type = TokenType::kUint16;
  int64_t num_tokens = 0;
  /// When the file of tokens was written.
  int64_t modified_ns = 0;
};

/// What `path`.json says of the file of tokens `path`; nullopt: there is none.
/// Throws: DataError, naming `path`.json, if `weft tokenize` did not write it.
std::optional<TokenOrigin> read_origin(const std::string& path);

/// A file of tokens, memory-mapped. Copies share the map. Reading is safe from
/// several threads.
class TokenFile {
 public:
  /// Opens `path` and checks that what it says of itself is what it holds.
  /// `type` is for raw files (default: what `path`.json says, which
  /// `weft tokenize` writes, else uint16); for others it has to agree.
  /// Throws: DataError with file and offset.
  static TokenFile open(
      const std::string& path,
      TokenFormat format = TokenFormat::kAuto,
      std::optional<TokenType> type = std::nullopt);

  /// Tokens.
  int64_t size() const;
  TokenFormat format() const;
  TokenType type() const;
  const DataFile& file() const;
  /// Where token `index` lies. Units: bytes.
  int64_t offset_bytes(int64_t index) const;
  /// What `path`.json says of the tokenizer; nullopt: there is none.
  const std::optional<TokenOrigin>& origin() const;

  /// Fills `out` with the tokens from `index` on.
  /// Throws: c10::ValueError if they are not inside [0, size()); DataError,
  /// with file and offset, if the file became shorter since it was opened.
  void read(int64_t index, std::span<int64_t> out) const;

  /// Reads every token, unless their type has no larger ones, or the tokenizer
  /// that wrote them (see origin) has none and the file is as it left it.
  /// Throws: DataError, with file and offset, for the first token that is not
  /// in [0, vocab_size).
  void check_below(int64_t vocab_size) const;
  /// The same for `tokens`, read from `index` on.
  void check_tokens_below(
      std::span<const int64_t> tokens,
      int64_t index,
      int64_t vocab_size) const;

 private:
  struct Map;
  std::shared_ptr<const Map> map_;
};

} // namespace weft::recipes
