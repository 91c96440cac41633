#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace weft::recipes {

/// A value in a tokenizer.json that knows its place, for messages:
/// "llama/tokenizer.json: model.merges: ...".
class JsonNode {
 public:
  /// Lifetime: `value` outlives this and what comes out of it.
  JsonNode(const nlohmann::json& value, std::string file)
      : value_(&value), file_(std::move(file)) {}

  /// The value of a key of this object. All throw TokenizerError.
  JsonNode at(std::string_view key) const;
  /// nullopt: not there, or null.
  std::optional<JsonNode> find(std::string_view key) const;
  std::vector<JsonNode> elements() const;

  std::string string() const;
  /// At least 0 and less than 2^31.
  int32_t count() const;
  bool boolean() const;
  bool boolean(std::string_view key, bool otherwise) const;
  /// Of exactly one character.
  std::string character() const;
  /// {"String": ..} or {"Regex": ..}: the key and its value.
  std::pair<std::string, std::string> pattern() const;
  /// The "type" of a component.
  std::string type() const;

  const nlohmann::json& value() const { return *value_; }
  /// Throws: TokenizerError "<file>: <path>: <message>".
  [[noreturn]] void refuse(const std::string& message) const;
  /// Of a component that this build has not got.
  [[noreturn]] void refuse_type() const;

 private:
  JsonNode child(const nlohmann::json& value, const std::string& step) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

} // namespace weft::recipes
