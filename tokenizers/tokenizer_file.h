#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::recipes {

/// The content of a regular file of at most 256 MiB.
/// Throws: TokenizerError.
std::string read_tokenizer_file(const std::string& path);

/// 16 hexadecimal digits.
std::string content_fingerprint(std::string_view content);

/// Throws: TokenizerError, with the offset, if the text is not UTF-8.
void check_text(std::string_view text);

/// Throws: TokenizerError unless the token is in [0, vocab_size).
void check_token(int64_t token, int64_t vocab_size);

} // namespace weft::recipes
