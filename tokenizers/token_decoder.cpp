#include "tokenizers/token_decoder.h"

#include <cstdlib>
#include <utility>

#include "tokenizers/byte_alphabet.h"
#include "tokenizers/normalizer.h"

namespace weft::tokenizers {
namespace {

using Names = std::vector<std::string>;

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) {
    text += name;
  }
  return text;
}

Names from_byte_level(const Names& names) {
  std::string bytes;
  for (const std::string& name : names) {
    bytes += decode_byte_level(name).value_or(name);
  }
  return {bytes};
}

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
         (c >= 'A' && c <= 'F');
}

Names from_byte_fallback(Names names) {
  for (std::string& name : names) {
    if (name.size() == 6 && name.starts_with("<0x") && name.ends_with('>') &&
        is_hex_digit(name[3]) && is_hex_digit(name[4])) {
      const long byte = std::strtol(name.substr(3, 2).c_str(), nullptr, 16);
      name = std::string(1, static_cast<char>(byte));
    }
  }
  return names;
}

std::string stripped(
    std::string name,
    const std::string& content,
    int32_t start,
    int32_t stop) {
  for (int32_t i = 0; i < start && name.starts_with(content); ++i) {
    name.erase(0, content.size());
  }
  for (int32_t i = 0; i < stop && name.ends_with(content); ++i) {
    name.resize(name.size() - content.size());
  }
  return name;
}

} // namespace

TokenDecoder::TokenDecoder(const std::optional<JsonNode>& node)
    : joins_with_spaces_(!node) {
  if (node) {
    add(*node);
  }
}

void TokenDecoder::add(const JsonNode& node) {
  const std::string type = node.type();
  const auto for_each_name = [this](std::function<std::string(std::string)> f) {
    steps_.emplace_back([change = std::move(f)](Names names) {
      for (std::string& name : names) {
        name = change(std::move(name));
      }
      return names;
    });
  };
  if (type == "Sequence") {
    for (const JsonNode& step : node.at("decoders").elements()) {
      add(step);
    }
  } else if (type == "ByteLevel") {
    steps_.emplace_back(from_byte_level);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(from_byte_fallback);
  } else if (type == "Fuse") {
    steps_.emplace_back(
        [](const Names& names) { return Names{joined(names)}; });
  } else if (type == "Replace") {
    const auto [kind, pattern] = node.at("pattern").pattern();
    if (kind == "Regex") {
      node.refuse("a decoder's pattern must be of type String, got Regex");
    }
    for_each_name([pattern = pattern, content = node.at("content").string()](
                      const std::string& name) {
      return replace_all(name, pattern, content);
    });
  } else if (type == "Strip") {
    for_each_name([content = node.at("content").character(),
                   start = node.at("start").count(),
                   stop = node.at("stop").count()](std::string name) {
      return stripped(std::move(name), content, start, stop);
    });
  } else if (type == "Metaspace") {
    add_metaspace(node);
  } else {
    node.refuse_type();
  }
}

// Replaces the visible character by a space. The first token loses the space
// that encoding put before the text.
void TokenDecoder::add_metaspace(const JsonNode& node) {
  const auto scheme = node.find("prepend_scheme");
  const bool prepends = (!scheme || scheme->string() != "never") &&
                        node.boolean("add_prefix_space", true);
  steps_.emplace_back([prepends, space = node.at("replacement").character()](
                          Names names) {
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = replace_all(names[i], space, i == 0 && prepends ? "" : " ");
    }
    return names;
  });
}

std::string TokenDecoder::decode(std::vector<std::string> names) const {
  for (const Step& step : steps_) {
    names = step(std::move(names));
  }
  if (!joins_with_spaces_) {
    return joined(names);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : " ") + names[i];
  }
  return text;
}

} // namespace weft::tokenizers
