#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

/// Texts of JSON values, and their binary form. Parser and serializer of
/// nlohmann::json are templates that every source which calls them compiles
/// again; here they are compiled once, for nlohmann::json and
/// nlohmann::ordered_json.
namespace weft::base {

/// The value of `text`. Throws nlohmann::json::parse_error if it is not JSON.
template <typename Json = nlohmann::json>
Json parse_json(std::string_view text);

/// The value of `text`, of which is_discarded() is true if it is not JSON.
template <typename Json = nlohmann::json>
Json try_parse_json(std::string_view text);

/// `json` on one line. Bytes that are not UTF-8, as names of users can have,
/// become U+FFFD.
template <typename Json>
std::string json_text(const Json& json);

/// `json` on one line, or on several with `indent` blanks a level. Throws
/// nlohmann::json::type_error if a text is not UTF-8.
template <typename Json>
std::string strict_json_text(const Json& json, int indent = -1);

/// `json` as CBOR, which is shorter than text.
std::string to_cbor(const nlohmann::json& json);

/// The value of what to_cbor() returned. Throws nlohmann::json::exception if
/// `bytes` are not CBOR.
nlohmann::json parse_cbor(std::string_view bytes);

} // namespace weft::base
