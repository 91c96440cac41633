#include "launcher/process/error_file.h"

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_int.h"

namespace weft::launcher {
namespace {

constexpr size_t kMaxErrorBytes = 1 << 20;

std::string read_some(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return "";
  }
  std::string bytes(kMaxErrorBytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(
      static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return bytes;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

} // namespace

ErrorFile read_error_file(const std::filesystem::path& path) {
  const auto json = base::try_parse_json(read_some(path));
  ErrorFile file;
  if (!json.is_object() || !json.contains("message")) {
    return file;
  }
  const auto& message = json["message"];
  if (!message.is_object()) {
    file.message = text_at(json, "message");
    return file;
  }
  file.message = text_at(message, "message");
  const auto extra = message.find("extraInfo");
  if (extra != message.end() && extra->is_object()) {
    file.time_ns = base::parse_int<int64_t>(text_at(*extra, "timestamp_ns"));
    file.cause = base::error_cause_of(text_at(*extra, "cause"));
    const std::string callstack = text_at(*extra, "py_callstack");
    file.callstack = callstack.starts_with("#0 ") ? callstack : "";
  }
  return file;
}

} // namespace weft::launcher
