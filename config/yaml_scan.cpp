#include "config/yaml_scan.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft::config {
namespace {

Position position_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n');
  const size_t line_end = before.rfind('\n');
  const size_t line_start =
      line_end == std::string_view::npos ? 0 : line_end + 1;
  return {line + 1, static_cast<int64_t>(offset - line_start) + 1};
}

size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return 0;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) {
      return 0;
    }
  }
  const bool overlong =
      (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool not_a_character =
      (lead == 0xed && byte(1) >= 0xa0) || (lead == 0xf4 && byte(1) >= 0x90);
  return overlong || not_a_character ? 0 : length;
}

bool is_forbidden(char c, char next) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\r') {
    return next != '\n';
  }
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

void check_characters(std::string_view text) {
  size_t length = 1;
  for (size_t i = 0; i < text.size(); i += length) {
    length = sequence_length(text.substr(i));
    if (length == 0) {
      throw YamlError(
          position_of(text, i),
          fmt::format(
              "byte 0x{:02x} is not UTF-8",
              static_cast<unsigned char>(text[i])));
    }
    if (is_forbidden(text[i], i + 1 < text.size() ? text[i + 1] : '\0')) {
      throw YamlError(
          position_of(text, i),
          fmt::format(
              "control character 0x{:02x}",
              static_cast<unsigned char>(text[i])));
    }
  }
}

bool is_blank(std::string_view text, size_t i) {
  return i >= text.size() || text[i] == ' ' || text[i] == '\t' ||
         text[i] == '\n' || text[i] == '\r';
}

// Returns the offset of the quote that ends the scalar opened at `begin`.
// Throws YamlError if there is none, because yaml-cpp accepts the end of the
// text instead.
size_t end_of_quoted(std::string_view text, size_t begin) {
  const char quote = text[begin];
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) {
        return i;
      }
      ++i;
    }
  }
  throw YamlError(position_of(text, begin), "this quote is never closed");
}

void check_structure(std::string_view text) {
  int64_t depth = 0;
  bool node_may_start = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#' && (i == 0 || is_blank(text, i - 1))) {
      i = std::min(text.find('\n', i), text.size());
      node_may_start = true;
    } else if (is_blank(text, i)) {
      node_may_start = node_may_start || c == '\n';
    } else if ((c == '"' || c == '\'') && node_may_start) {
      i = end_of_quoted(text, i);
      node_may_start = false;
    } else if ((c == '[' || c == '{') && (node_may_start || depth > 0)) {
      if (++depth > kMaxYamlDepth) {
        throw YamlError(
            position_of(text, i),
            fmt::format("nested more than {} deep", kMaxYamlDepth));
      }
      node_may_start = true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
      node_may_start = false;
    } else {
      const bool indicator = c == ':' || c == '-' || c == '?';
      node_may_start = (indicator && is_blank(text, i + 1)) ||
                       (depth > 0 && (c == ',' || c == ':'));
    }
  }
}

} // namespace

void scan_yaml(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxYamlBytes) {
    throw YamlError(
        {},
        fmt::format(
            "the recipe has {} bytes, but at most {} are allowed",
            text.size(),
            kMaxYamlBytes));
  }
  check_characters(text);
  check_structure(text);
}

} // namespace weft::config
