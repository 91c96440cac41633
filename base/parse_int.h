#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace weft::base {

/// Returns the integer at the start of `text`; anything may follow.
template <typename T>
std::optional<T> parse_leading_int(std::string_view text) {
  T value = 0;
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// Returns the integer in `text` if it is between `least` and `most`.
template <typename T>
std::optional<T> parse_int(
    std::string_view text,
    T least = std::numeric_limits<T>::min(),
    T most = std::numeric_limits<T>::max()) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= least && value <= most
             ? std::optional(value)
             : std::nullopt;
}

} // namespace weft::base
