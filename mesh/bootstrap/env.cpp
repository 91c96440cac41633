#include "mesh/bootstrap/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "mesh/error/error.h"

namespace weft::mesh::env {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

std::optional<int64_t> get_int(const char* name, int64_t least, int64_t most) {
  const auto text = get(name);
  return text ? std::optional(to_int(name, *text, least, most)) : std::nullopt;
}

int64_t to_int(
    const char* name,
    const std::string& value,
    int64_t least,
    int64_t most) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < least ||
      number > most) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        name,
        "=",
        value,
        " is not an integer from ",
        least,
        " to ",
        most,
        "."));
  }
  return number;
}

bool is_true(const char* name) {
  auto value = get(name).value_or("");
  std::transform(
      value.begin(), value.end(), value.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
  return value == "1" || value == "true" || value == "yes";
}

void unset(const char* name) {
  unsetenv(name);
}

void set(const char* name, const char* value) {
  ::setenv(name, value, 1);
}

void set_default(const char* name, const char* value) {
  setenv(name, value, /*replace=*/0);
}

} // namespace weft::mesh::env
