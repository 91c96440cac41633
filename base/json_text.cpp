#include "base/json_text.h"

namespace weft::base {

template <typename Json>
Json parse_json(std::string_view text) {
  return Json::parse(text);
}

template <typename Json>
Json try_parse_json(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <typename Json>
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Json>
std::string strict_json_text(const Json& json, int indent) {
  return json.dump(indent);
}

std::string to_cbor(const nlohmann::json& json) {
  std::string bytes;
  nlohmann::json::to_cbor(json, bytes);
  return bytes;
}

nlohmann::json parse_cbor(std::string_view bytes) {
  return nlohmann::json::from_cbor(bytes);
}

template nlohmann::json parse_json(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);
template nlohmann::json try_parse_json(std::string_view);
template nlohmann::ordered_json try_parse_json(std::string_view);
template std::string json_text(const nlohmann::json&);
template std::string json_text(const nlohmann::ordered_json&);
template std::string strict_json_text(const nlohmann::json&, int);
template std::string strict_json_text(const nlohmann::ordered_json&, int);

} // namespace weft::base
