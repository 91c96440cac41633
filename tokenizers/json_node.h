#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace weft::tokenizers {

/// A value in a tokenizer.json and its path, for messages:
/// "llama/tokenizer.json: model.merges: ...".
class JsonNode {
 public:
  /// Lifetime: `value` must outlive this and the nodes that are read from it.
  JsonNode(const nlohmann::json& value, std::string file)
      : value_(&value), file_(std::move(file)) {}

  /// Returns the value of a key of this object. All functions here throw
  /// TokenizerError if the value does not have the requested form.
  JsonNode at(std::string_view key) const;
  /// Returns nullopt if the key is missing or its value is null.
  std::optional<JsonNode> find(std::string_view key) const;
  std::vector<JsonNode> elements() const;

  std::string string() const;
  /// Returns an integer from 0 to 2^31 - 2.
  int32_t count() const;
  bool boolean() const;
  bool boolean(std::string_view key, bool otherwise) const;
  /// Returns a string of exactly one character.
  std::string character() const;
  /// Returns the key and the value of {"String": ..} or {"Regex": ..}.
  std::pair<std::string, std::string> pattern() const;
  /// Returns the "type" of a component.
  std::string type() const;

  const nlohmann::json& value() const { return *value_; }
  /// Throws: TokenizerError "<file>: <path>: <message>".
  [[noreturn]] void refuse(const std::string& message) const;
  /// Throws: TokenizerError with the component's type, which this build does
  /// not support.
  [[noreturn]] void refuse_type() const;

 private:
  JsonNode child(const nlohmann::json& value, const std::string& step) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

} // namespace weft::tokenizers
