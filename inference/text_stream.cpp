#include "inference/text_stream.h"

#include <algorithm>

namespace weft::inference {
namespace {

// The number of tokens that are decoded together, which is more than the number
// of tokens that change each other's text.
constexpr size_t kMaxTokens = 64;
constexpr size_t kKeptTokens = 16;
// The text that some tokenizers return for a part of a character.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

size_t length_of_character(unsigned char lead) {
  if (lead < 0x80) {
    return 1;
  }
  return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
}

// Ignores tokens that the tokenizer does not have. A model's vocabulary may be
// larger, so that it can be divided evenly.
std::string decode_known(
    const tokenizers::Tokenizer& tokenizer,
    std::span<const int64_t> tokens) {
  std::vector<int64_t> known;
  std::ranges::copy_if(tokens, std::back_inserter(known), [&](int64_t token) {
    return token < tokenizer.vocab_size();
  });
  return tokenizer.decode(known);
}

} // namespace

size_t unfinished_bytes(const std::string& text) {
  for (size_t back = 1; back <= std::min<size_t>(text.size(), 3); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) != 0x80) {
      return length_of_character(byte) > back ? back : 0;
    }
  }
  return 0;
}

TextStream::TextStream(
    const tokenizers::Tokenizer* tokenizer,
    std::span<const int64_t> prompt)
    : tokenizer_(tokenizer) {
  if (tokenizer_ != nullptr) {
    const size_t kept = std::min(prompt.size(), kKeptTokens);
    tokens_.assign(prompt.end() - static_cast<ptrdiff_t>(kept), prompt.end());
    given_ = decoded().size();
  }
}

std::string TextStream::decoded() const {
  return decode_known(*tokenizer_, tokens_);
}

std::string TextStream::add(int64_t token) {
  if (tokenizer_ == nullptr) {
    const std::string space = is_first_ ? "" : " ";
    is_first_ = false;
    return space + std::to_string(token);
  }
  tokens_.push_back(token);
  const auto text = decoded();
  size_t certain = text.size() - unfinished_bytes(text);
  if (std::string_view(text).substr(0, certain).ends_with(kReplacement)) {
    certain -= kReplacement.size();
  }
  if (certain <= given_) {
    return "";
  }
  auto result = text.substr(given_, certain - given_);
  given_ = certain;
  if (certain == text.size() && tokens_.size() > kMaxTokens) {
    forget_old_tokens();
  }
  return result;
}

void TextStream::forget_old_tokens() {
  tokens_.erase(
      tokens_.begin(), tokens_.end() - static_cast<ptrdiff_t>(kKeptTokens));
  given_ = decoded().size();
}

std::string TextStream::finish() {
  if (tokenizer_ == nullptr) {
    return "";
  }
  const auto text = decoded();
  auto rest = text.size() > given_ ? text.substr(given_) : std::string();
  given_ = text.size();
  return rest;
}

std::string text_after(
    const tokenizers::Tokenizer* tokenizer,
    std::span<const int64_t> prompt,
    std::span<const int64_t> tokens) {
  TextStream stream(tokenizer, prompt);
  std::string text;
  for (const int64_t token : tokens) {
    text += stream.add(token);
  }
  return text + stream.finish();
}

} // namespace weft::inference
