#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tokenizers {

/// Returns GPT-2's alphabet: a visible character for every byte.
/// Source: Radford et al., Language Models are Unsupervised Multitask Learners
/// (2019).
const std::array<char32_t, 256>& byte_alphabet();

/// Returns the bytes that `text` spells, or nullopt if it has a character
/// outside of the alphabet.
std::optional<std::string> decode_byte_level(std::string_view text);

} // namespace weft::tokenizers
