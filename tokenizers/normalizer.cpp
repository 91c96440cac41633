#include "tokenizers/normalizer.h"

#include <memory>
#include <utility>

#include "tokenizers/pattern.h"
#include "tokenizers/utf8.h"

namespace weft::recipes {
namespace {

std::string strip_spaces(const std::string& text, bool left, bool right) {
  size_t begin = 0;
  size_t end = 0; // of the last character that is no space
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
  return text.substr(begin, end - begin);
}

std::string replace_matches(
    const Pattern& pattern,
    const std::string& content,
    const std::string& text) {
  std::string replaced;
  size_t done = 0;
  pattern.for_each(text, [&](const Pattern::Match& match) {
    replaced += text.substr(done, match.begin - done) + content;
    done = match.end;
  });
  return replaced + text.substr(done);
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

std::string Normalizers::apply(std::string_view text) const {
  std::string normalized(text);
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
        [prefix = node.at("prepend").string()](std::string text) {
          return text.empty() ? text : prefix + text;
        });
  } else if (type == "Replace") {
    const auto [kind, written] = node.at("pattern").pattern();
    const std::string content = node.at("content").string();
    if (kind == "String") {
      steps_.emplace_back(
          [pattern = written, content](const std::string& text) {
            return replace_all(text, pattern, content);
          });
    } else {
      steps_.emplace_back([pattern = std::make_shared<const Pattern>(written),
                           content](const std::string& text) {
        return replace_matches(*pattern, content, text);
      });
    }
  } else if (type == "Strip") {
    steps_.emplace_back(
        [left = node.boolean("strip_left", false),
         right = node.boolean("strip_right", false)](const std::string& text) {
          return strip_spaces(text, left, right);
        });
  } else {
    node.refuse_type();
  }
}

} // namespace weft::recipes
