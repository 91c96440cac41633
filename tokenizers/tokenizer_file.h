#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::tokenizers {

/// Returns the content of a regular file of at most 256 MiB.
/// Throws: TokenizerError if the file cannot be read or is larger.
std::string read_tokenizer_file(const std::string& path);

/// Returns a hash of the content as 16 hexadecimal digits.
std::string content_fingerprint(std::string_view content);

/// Checks that a text is UTF-8.
/// Throws: InvalidText with the offset if it is not.
void check_text(std::string_view text);

/// Checks a token.
/// Throws: TokenizerError if it is not in [0, vocab_size).
void check_token(int64_t token, int64_t vocab_size);

} // namespace weft::tokenizers
