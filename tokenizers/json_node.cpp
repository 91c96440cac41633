#include "tokenizers/json_node.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tokenizers/tokenizer.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {

void JsonNode::refuse(const std::string& message) const {
  mesh::throw_error<TokenizerError>(fmt::format(
      "{}: {}{}{}", file_, path_, path_.empty() ? "" : ": ", message));
}

void JsonNode::refuse_type() const {
  refuse(fmt::format("{} is not supported", type()));
}

JsonNode JsonNode::child(const nlohmann::json& value, const std::string& step)
    const {
  JsonNode node(value, file_);
  const bool is_index = step.starts_with('[');
  node.path_ = path_ + (path_.empty() || is_index ? "" : ".") + step;
  return node;
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) {
    refuse(fmt::format("expected an object, found {}", value_->type_name()));
  }
  const auto found = value_->find(key);
  if (found == value_->end()) {
    refuse(fmt::format("has no \"{}\"", key));
  }
  return child(*found, std::string(key));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (value_->is_object() && !value_->contains(key)) {
    return std::nullopt;
  }
  const JsonNode found = at(key);
  return found.value_->is_null() ? std::nullopt : std::optional(found);
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) {
    refuse(fmt::format("expected a list, found {}", value_->type_name()));
  }
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back(child((*value_)[i], fmt::format("[{}]", i)));
  }
  return nodes;
}

std::string JsonNode::string() const {
  if (!value_->is_string()) {
    refuse(fmt::format("expected a string, found {}", value_->type_name()));
  }
  return value_->get<std::string>();
}

int32_t JsonNode::count() const {
  if (!value_->is_number_unsigned() ||
      value_->get<uint64_t>() >= std::numeric_limits<int32_t>::max()) {
    refuse(fmt::format(
        "expected an integer from 0 to 2^31 - 2, found {}",
        value_->is_number() ? value_->dump() : value_->type_name()));
  }
  return value_->get<int32_t>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) {
    refuse(fmt::format("expected a bool, found {}", value_->type_name()));
  }
  return value_->get<bool>();
}

bool JsonNode::boolean(std::string_view key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->boolean() : otherwise;
}

std::string JsonNode::character() const {
  std::string text = string();
  if (text.empty() || text.size() != utf8_length(text[0])) {
    refuse(fmt::format("expected one character, found \"{}\"", text));
  }
  return text;
}

std::pair<std::string, std::string> JsonNode::pattern() const {
  if (const auto literal = find("String")) {
    return {"String", literal->string()};
  }
  return {"Regex", at("Regex").string()};
}

std::string JsonNode::type() const {
  return at("type").string();
}

} // namespace weft::tokenizers
