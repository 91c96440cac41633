#include "checkpoint/files/text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/limits.h"

namespace weft::checkpoint {

void throw_corrupt(const std::string& where, const std::string& what) {
  mesh::throw_error<CheckpointError>(
      fmt::format("[checkpoint] {}: {}", where, what));
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMax = 200;
  std::string out = "\"";
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += text.size() > kMax ? "...\"" : "\"";
  return out;
}

std::string to_text(const std::vector<int64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string json_string(std::string_view text) {
  if (!is_utf8(text)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] {} is not UTF-8, so a checkpoint cannot store it. Use "
        "UTF-8 text",
        in_quotes(text)));
  }
  return base::strict_json_text(nlohmann::json(text));
}

bool is_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80           ? 1
                          : (lead >> 5) == 0x6  ? 2
                          : (lead >> 4) == 0xe  ? 3
                          : (lead >> 3) == 0x1e ? 4
                                                : 0;
    if (length == 0 || i + length > text.size()) {
      return false;
    }
    uint32_t code = length == 1 ? lead : lead & (0x7fU >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) {
        return false;
      }
      code = (code << 6) | (next & 0x3fU);
    }
    constexpr uint32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < kMin[length] || code > 0x10ffff || surrogate) {
      return false;
    }
    i += length;
  }
  return true;
}

bool has_control_bytes(std::string_view text) {
  return std::ranges::any_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

int64_t element_count(const std::vector<int64_t>& shape) {
  constexpr int64_t kMax = int64_t{1} << 62;
  if (std::ranges::any_of(shape, [](int64_t size) { return size < 0; })) {
    return -1;
  }
  int64_t count = 1;
  // A size of 0 counts as 1 here, so that a shape like [0, 2^62, 2^62] is
  // rejected, too.
  for (const int64_t size : shape) {
    if (size > 0 && count > kMax / size) {
      return -1;
    }
    count *= std::max<int64_t>(size, 1);
  }
  return std::ranges::count(shape, 0) > 0 ? 0 : count;
}

bool is_tensor_name(std::string_view name, std::string& why) {
  if (name.empty()) {
    why = "a tensor has no name";
  } else if (name.size() > static_cast<size_t>(limits::kTensorName)) {
    why = fmt::format(
        "the name of tensor {} has {} bytes; at most {} are allowed",
        in_quotes(name),
        name.size(),
        limits::kTensorName);
  } else if (has_control_bytes(name) || !is_utf8(name)) {
    why = fmt::format(
        "the name of tensor {} has control bytes or is not UTF-8",
        in_quotes(name));
  } else if (name == "__metadata__") {
    why = "a tensor must not be named __metadata__";
  } else {
    return true;
  }
  return false;
}

} // namespace weft::checkpoint
