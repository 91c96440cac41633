#include "mesh/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "mesh/error.h"

namespace weft::mesh::env {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

std::string require(const char* name, const char* needed_by) {
  auto value = get(name);
  if (!value) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        name,
        " is not set, but ",
        needed_by,
        ". Start the ranks with weftrun, or set it."));
  }
  return *value;
}

std::optional<int64_t> get_int(const char* name, int64_t least, int64_t most) {
  const auto text = get(name);
  if (!text) {
    return std::nullopt;
  }
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < least ||
      value > most) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        name,
        "=",
        *text,
        " is not a whole number from ",
        least,
        " to ",
        most,
        "."));
  }
  return value;
}

int64_t require_int(
    const char* name,
    const char* needed_by,
    int64_t least,
    int64_t most) {
  require(name, needed_by);
  return *get_int(name, least, most);
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

} // namespace weft::mesh::env
