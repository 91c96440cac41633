#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/tokenizer.h"

namespace weft::recipes {

/// Reads a Hugging Face tokenizer.json of type BPE; begin and end tokens are
/// what tokenizer_config.json or special_tokens_map.json beside it say, else
/// what its post-processor puts around a text.
/// Throws: TokenizerError.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

/// The same for a text; `path` stands for it in messages and tells the folder
/// of the other files.
std::unique_ptr<Tokenizer> parse_tokenizer_json(
    std::string_view text,
    const std::string& path);

} // namespace weft::recipes
