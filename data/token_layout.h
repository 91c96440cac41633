#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/token_file.h"

/// Definitions shared by readers and writers of token files.
namespace weft::data {

/// The header of llm.c: 256 int32; the first three are the magic
/// number, the version and the number of tokens.
/// Source: Karpathy, llm.c, data_common.py.
struct LlmCHeader {
  static constexpr int64_t kBytes = 1024;
  int32_t magic = 0;
  int32_t version = 0;
  TokenType type = TokenType::kUint16;
};

inline constexpr std::array<LlmCHeader, 2> kLlmCHeaders = {
    {{.magic = 20240520, .version = 1, .type = TokenType::kUint16},
     {.magic = 20240801, .version = 7, .type = TokenType::kUint32}}};

/// The format of Megatron's .idx: magic number (9 bytes), version (uint64),
/// type (uint8), the numbers of sequences and of document ends (uint64 each);
/// the length of each sequence (int32), then the start of each (int64, bytes);
/// then the document ends (int64), from 0 to the number of sequences.
/// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
struct MegatronIndex {
  static constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
  static constexpr uint64_t kVersion = 1;
  static constexpr int64_t kHeaderBytes = 34;
  struct Code {
    uint8_t code;
    TokenType type;
  };
  static constexpr std::array<Code, 5> kCodes = {
      {{1, TokenType::kUint8},
       {3, TokenType::kInt16},
       {4, TokenType::kInt32},
       {5, TokenType::kInt64},
       {8, TokenType::kUint16}}};
};

/// The position of the tokens in a file.
struct TokenLayout {
  TokenFormat format = TokenFormat::kRaw;
  TokenType type = TokenType::kUint16;
  /// Unit: bytes.
  int64_t begin = 0;
  /// Unit: tokens.
  int64_t size = 0;
};

/// Returns the layout of a file with the content `bytes`; `raw_type` is the
/// type of raw files.
/// Throws: DataError with file and offset, if the header does not match the
/// content.
TokenLayout find_layout(
    const std::string& path,
    std::span<const unsigned char> bytes,
    TokenFormat format,
    TokenType raw_type);

/// Returns "FILE.idx" for "FILE.bin".
std::string index_path(const std::string& path);
/// Returns "FILE.bin.json", the file with the origin of the tokens.
std::string origin_path(const std::string& path);

} // namespace weft::data
