#include "tokenizers/normalizer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tokenizers/pattern.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

HeadedText strip_spaces(const HeadedText& from, bool left, bool right) {
  const std::string& text = from.text;
  size_t begin = 0;
  size_t end = 0; // The end of the last character that is not a space.
  bool leading = true;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    if (!is_white_space(utf8_at(text, i))) {
      leading = false;
      end = i + utf8_length(text[i]);
    } else if (leading) {
      begin = i + utf8_length(text[i]);
    }
  }
  begin = left ? begin : 0;
  end = right ? std::max(begin, end) : text.size();
  return {
      .text = text.substr(begin, end - begin),
      .head = head_of_part(from.head, begin, end)};
}

HeadedText prepend(const std::string& prefix, HeadedText text) {
  if (text.text.empty()) {
    return text;
  }
  if (prefix.empty()) {
    // The library replaces the first character by itself, so the head has all
    // of its bytes.
    text.head = std::max(text.head, utf8_length(text.text[0]));
  } else if (text.head > 0) {
    text.head += prefix.size();
  }
  text.text.insert(0, prefix);
  return text;
}

// A text in which matches are replaced. match() is called from left to right.
class Replacer {
 public:
  Replacer(const HeadedText& from, const std::string& content)
      : from_(from), content_(content) {}

  void match(size_t begin, size_t end) {
    copy_to(begin);
    to_.text += content_;
    if (end == 0 || end - 1 < from_.head) {
      to_.head = to_.text.size();
    }
    done_ = end;
  }

  HeadedText finish() {
    copy_to(from_.text.size());
    return std::move(to_);
  }

 private:
  void copy_to(size_t end) {
    if (done_ < from_.head) {
      to_.head = to_.text.size() + head_of_part(from_.head, done_, end);
    }
    to_.text.append(from_.text, done_, end - done_);
  }

  const HeadedText& from_;
  const std::string& content_;
  HeadedText to_;
  size_t done_ = 0;
};

HeadedText replace_strings(
    const std::string& pattern,
    const std::string& content,
    const HeadedText& from) {
  Replacer replacer(from, content);
  size_t found = from.text.find(pattern);
  while (found != std::string::npos) {
    replacer.match(found, found + pattern.size());
    found = from.text.find(pattern, found + pattern.size());
  }
  return replacer.finish();
}

HeadedText replace_matches(
    const Pattern& pattern,
    const std::string& content,
    const HeadedText& from) {
  Replacer replacer(from, content);
  if (!from.text.empty()) {
    // An empty text has no matches, not even empty ones.
    pattern.for_each(from.text, [&](const Pattern::Match& match) {
      replacer.match(match.begin, match.end);
    });
  }
  return replacer.finish();
}

} // namespace

std::string replace_all(
    std::string_view text,
    std::string_view pattern,
    std::string_view content) {
  std::string replaced;
  size_t done = 0;
  while (!pattern.empty()) {
    const size_t found = text.find(pattern, done);
    if (found == std::string_view::npos) {
      break;
    }
    replaced += text.substr(done, found - done);
    replaced += content;
    done = found + pattern.size();
  }
  replaced += text.substr(done);
  return replaced;
}

Normalizers::Normalizers(const std::optional<JsonNode>& node) {
  if (node) {
    add(*node);
  }
}

HeadedText Normalizers::apply(std::string_view text) const {
  HeadedText normalized{
      .text = std::string(text),
      .head = text.empty() ? 0 : utf8_length(text[0])};
  for (const Step& step : steps_) {
    normalized = step(std::move(normalized));
  }
  return normalized;
}

void Normalizers::add(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const JsonNode& step : node.at("normalizers").elements()) {
      add(step);
    }
  } else if (type == "Prepend") {
    steps_.emplace_back(
        [prefix = node.at("prepend").string()](HeadedText text) {
          return prepend(prefix, std::move(text));
        });
  } else if (type == "Replace") {
    const auto [kind, written] = node.at("pattern").pattern();
    const std::string content = node.at("content").string();
    // An empty string is also an expression, which matches at every position.
    if (kind == "String" && !written.empty()) {
      steps_.emplace_back([pattern = written, content](const HeadedText& text) {
        return replace_strings(pattern, content, text);
      });
    } else {
      steps_.emplace_back([pattern = std::make_shared<const Pattern>(written),
                           content](const HeadedText& text) {
        return replace_matches(*pattern, content, text);
      });
    }
  } else if (type == "Strip") {
    steps_.emplace_back(
        [left = node.boolean("strip_left", false),
         right = node.boolean("strip_right", false)](const HeadedText& text) {
          return strip_spaces(text, left, right);
        });
  } else {
    node.refuse_type();
  }
}

} // namespace weft::tokenizers
