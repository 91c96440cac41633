#pragma once

#include <memory>
#include <string>

#include "tokenizers/tokenizer.h"

namespace weft::tokenizers {

/// Opens a SentencePiece model.
/// Throws: TokenizerError if the file cannot be used.
std::unique_ptr<Tokenizer> open_sentence_piece(const std::string& path);

} // namespace weft::tokenizers
