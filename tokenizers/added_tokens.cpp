#include "tokenizers/added_tokens.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokenizers/pattern.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

uint64_t step_key(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

size_t character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) {
    --begin;
  }
  return begin;
}

// Returns true if a word character is at `offset`, which is inside the text.
bool has_word_at(std::string_view text, size_t offset) {
  const Pattern word("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]");
  return word.find(text.substr(offset, utf8_length(text[offset])), 0)
      .has_value();
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !has_word_at(text, character_before(text, begin))) &&
         (end == text.size() || !has_word_at(text, end));
}

size_t spaces_before(std::string_view text, size_t begin) {
  while (begin > 0) {
    const size_t before = character_before(text, begin);
    if (!is_white_space(utf8_at(text, before))) {
      break;
    }
    begin = before;
  }
  return begin;
}

size_t spaces_after(std::string_view text, size_t end) {
  while (end < text.size() && is_white_space(utf8_at(text, end))) {
    end += utf8_length(text[end]);
  }
  return end;
}

} // namespace

void StringFinder::add(std::string_view text, const AddedToken* token) {
  uint32_t node = 0;
  begins_[static_cast<unsigned char>(text[0])] = true;
  for (const char byte : text) {
    const auto next = static_cast<uint32_t>(ends_.size());
    const auto [step, is_new] = steps_.emplace(step_key(node, byte), next);
    if (is_new) {
      ends_.push_back(nullptr);
    }
    node = step->second;
  }
  ends_[node] = token;
}

StringFinder::Match StringFinder::find(std::string_view text, size_t from)
    const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) {
      continue;
    }
    Match longest;
    uint32_t node = 0;
    for (size_t end = begin; end < text.size(); ++end) {
      const auto step = steps_.find(step_key(node, text[end]));
      if (step == steps_.end()) {
        break;
      }
      node = step->second;
      if (ends_[node] != nullptr) {
        longest = {.begin = begin, .end = end + 1, .token = ends_[node]};
      }
    }
    if (longest.token != nullptr) {
      return longest;
    }
  }
  return {};
}

AddedTokens::AddedTokens(
    const std::optional<JsonNode>& node,
    const Vocabulary& vocabulary,
    const Normalizers& normalizers)
    : vocabulary_(vocabulary) {
  auto next_id = static_cast<int32_t>(vocabulary.size());
  for (const JsonNode& written :
       node ? node->elements() : std::vector<JsonNode>{}) {
    AddedToken token{
        .content = written.at("content").string(),
        .single_word = written.boolean("single_word", false),
        .lstrip = written.boolean("lstrip", false),
        .rstrip = written.boolean("rstrip", false),
        .normalized = written.boolean("normalized", true),
        .special = written.boolean("special", false)};
    if (!token.content.empty()) {
      assign_id(written, token, next_id);
      tokens_.insert_or_assign(token.content, token);
    }
  }
  for (const auto& [content, token] : tokens_) {
    const std::string text =
        token.normalized ? normalizers.apply(content).text : content;
    texts_.emplace(token.id, text);
    if (!text.empty()) {
      (token.normalized ? normalized_ : raw_).add(text, &token);
    }
  }
}

// Hugging Face's library assigns the IDs itself and ignores those in the file.
// A file with other IDs is refused.
void AddedTokens::assign_id(
    const JsonNode& node,
    AddedToken& token,
    int32_t& next_id) {
  if (const AddedToken* known = find(token.content)) {
    token.id = known->id;
  } else if (const auto found = vocabulary_.find(token.content);
             found != vocabulary_.end()) {
    token.id = found->second;
  } else {
    token.id = next_id++;
  }
  if (node.at("id").count() != token.id) {
    node.refuse(fmt::format(
        "token \"{}\" has id {} here, expected {} from the vocabulary and its "
        "position",
        token.content,
        node.at("id").count(),
        token.id));
  }
}

const AddedToken* AddedTokens::find(const std::string& content) const {
  const auto found = tokens_.find(content);
  return found == tokens_.end() ? nullptr : &found->second;
}

bool AddedTokens::is_special(const std::string& text) const {
  const AddedToken* token = find(text);
  return token != nullptr && token->special;
}

void AddedTokens::split(
    std::string_view text,
    bool is_normalized,
    PartSink sink) const {
  const StringFinder& finder = is_normalized ? normalized_ : raw_;
  size_t done = 0;
  size_t from = 0;
  while (!finder.empty()) {
    const auto match = finder.find(text, from);
    if (match.token == nullptr) {
      break;
    }
    from = match.end;
    size_t begin = match.begin;
    size_t end = match.end;
    if (match.token->single_word && !is_single_word(text, begin, end)) {
      continue;
    }
    if (match.token->lstrip) {
      begin = std::max(spaces_before(text, begin), done);
    }
    if (match.token->rstrip) {
      end = spaces_after(text, end);
    }
    if (end <= begin) {
      // The previous token has taken these spaces.
      continue;
    }
    if (done < begin) {
      sink(text.substr(done, begin - done), nullptr);
    }
    sink(text.substr(begin, end - begin), match.token);
    done = end;
  }
  if (done < text.size()) {
    sink(text.substr(done), nullptr);
  }
}

} // namespace weft::tokenizers
