#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/tokenizer.h"

namespace weft::tokenizers {

/// Reads a Hugging Face tokenizer.json of type BPE. The begin and end tokens
/// come from tokenizer_config.json or special_tokens_map.json in the same
/// folder, otherwise from its post-processor.
/// Throws: TokenizerError if a file is malformed or a component is not
/// supported.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

/// Like open_tokenizer_json(), for a text. `path` is the file name in messages
/// and gives the folder of the other files.
std::unique_ptr<Tokenizer> parse_tokenizer_json(
    std::string_view text,
    const std::string& path);

} // namespace weft::tokenizers
