#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data/data_error.h"
#include "data/mapped_file.h"
#include "data/token_layout.h"

namespace weft::data {
namespace {

template <class Visit>
auto with_type(TokenType type, const Visit& visit) {
  switch (type) {
    case TokenType::kUint8:
      return visit.template operator()<uint8_t>();
    case TokenType::kUint16:
      return visit.template operator()<uint16_t>();
    case TokenType::kInt16:
      return visit.template operator()<int16_t>();
    case TokenType::kInt32:
      return visit.template operator()<int32_t>();
    case TokenType::kUint32:
      return visit.template operator()<uint32_t>();
    default:
      return visit.template operator()<int64_t>();
  }
}

std::optional<TokenType> type_named(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(TokenType::kInt64); ++i) {
    if (to_string(static_cast<TokenType>(i)) == name) {
      return static_cast<TokenType>(i);
    }
  }
  return std::nullopt;
}

} // namespace

int64_t size_bytes(TokenType type) {
  return with_type(type, []<class T>() { return int64_t{sizeof(T)}; });
}

int64_t most(TokenType type) {
  return with_type(type, []<class T>() {
    return static_cast<int64_t>(std::numeric_limits<T>::max());
  });
}

std::string to_string(TokenType type) {
  constexpr std::array<const char*, 6> kNames = {
      "uint8", "uint16", "int16", "int32", "uint32", "int64"};
  return kNames.at(static_cast<size_t>(type));
}

std::optional<TokenOrigin> read_origin(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(origin_path(path), ignored);
  if (std::filesystem::exists(status) &&
      !std::filesystem::is_regular_file(status)) {
    refuse_data(origin_path(path), 0, "not a regular file");
  }
  std::ifstream file(origin_path(path), std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  try {
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto json = base::parse_json(text);
    const auto type = type_named(json.at("dtype").get<std::string>());
    if (!type) {
      refuse_data(origin_path(path), 0, "unknown dtype");
    }
    return TokenOrigin{
        .tokenizer = json.at("tokenizer"),
        .fingerprint = json.at("fingerprint"),
        .vocab_size = json.at("vocab_size"),
        .format = config::choice_of<TokenFormat>(json.value("format", ""))
                      .value_or(TokenFormat::kAuto),
        .type = *type,
        .num_tokens = json.at("tokens"),
        .modified_ns = json.at("modified_ns")};
  } catch (const nlohmann::json::exception& error) {
    refuse_data(
        origin_path(path),
        0,
        fmt::format(
            "the file does not have the format that weft tokenize writes: {}",
            error.what()));
  }
}

struct TokenFile::Map {
  explicit Map(const std::string& path) : file(path) {}
  MappedFile file;
  TokenLayout layout;
  std::optional<TokenOrigin> origin;
};

TokenFile TokenFile::open(
    const std::string& path,
    TokenFormat format,
    std::optional<TokenType> type) {
  auto map = std::make_shared<Map>(path);
  map->origin = read_origin(path);
  const TokenType written =
      map->origin ? map->origin->type : TokenType::kUint16;
  map->layout =
      find_layout(path, map->file.bytes(), format, type.value_or(written));
  const TokenLayout& layout = map->layout;
  if (type && *type != layout.type) {
    refuse_data(
        path,
        0,
        fmt::format(
            "has {}, not {}", to_string(layout.type), to_string(*type)));
  }
  if (map->origin && (map->origin->num_tokens != layout.size ||
                      map->origin->type != layout.type)) {
    refuse_data(
        path,
        layout.begin,
        fmt::format(
            "the file has {} tokens of type {}, but \"{}\" states {} of type "
            "{}",
            layout.size,
            to_string(layout.type),
            origin_path(path),
            map->origin->num_tokens,
            to_string(map->origin->type)));
  }
  TokenFile file;
  file.map_ = std::move(map);
  return file;
}

int64_t TokenFile::size() const {
  return map_->layout.size;
}

TokenFormat TokenFile::format() const {
  return map_->layout.format;
}

TokenType TokenFile::type() const {
  return map_->layout.type;
}

const DataFile& TokenFile::file() const {
  return map_->file.file();
}

const std::optional<TokenOrigin>& TokenFile::origin() const {
  return map_->origin;
}

int64_t TokenFile::offset_bytes(int64_t index) const {
  return map_->layout.begin + index * size_bytes(type());
}

void TokenFile::read(int64_t index, std::span<int64_t> out) const {
  const auto length = static_cast<int64_t>(out.size());
  if (index < 0 || index > size() - length) {
    mesh::throw_error<c10::ValueError>(fmt::format(
        "[read] got index {} and length {}, expected a range within the {} "
        "tokens of the file.",
        index,
        length,
        size()));
  }
  map_->file.check_unchanged(offset_bytes(index));
  const unsigned char* from = map_->file.bytes().data() + offset_bytes(index);
  with_type(type(), [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) {
      T token{};
      std::memcpy(&token, from + i * sizeof(T), sizeof(T));
      out[i] = static_cast<int64_t>(token);
    }
  });
}

void TokenFile::check_below(int64_t vocab_size) const {
  const bool is_signed = type() == TokenType::kInt16 ||
                         type() == TokenType::kInt32 ||
                         type() == TokenType::kInt64;
  const bool fits_type = !is_signed && most(type()) < vocab_size;
  const bool fits_origin = origin() && origin()->vocab_size <= vocab_size &&
                           origin()->modified_ns == file().modified_ns;
  if (fits_type || fits_origin) {
    return;
  }
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int64_t> block(static_cast<size_t>(kBlock));
  for (int64_t begin = 0; begin < size(); begin += kBlock) {
    const auto part = std::span(block).first(
        static_cast<size_t>(std::min(kBlock, size() - begin)));
    read(begin, part);
    check_tokens_below(part, begin, vocab_size);
  }
}

void TokenFile::check_tokens_below(
    std::span<const int64_t> tokens,
    int64_t index,
    int64_t vocab_size) const {
  uint64_t largest = 0; // A negative token becomes huge.
  for (const int64_t token : tokens) {
    largest = std::max(largest, static_cast<uint64_t>(token));
  }
  if (largest < static_cast<uint64_t>(vocab_size)) {
    return;
  }
  const auto found =
      std::find_if(tokens.begin(), tokens.end(), [&](int64_t token) {
        return token < 0 || token >= vocab_size;
      });
  refuse_data(
      file().path,
      offset_bytes(index + (found - tokens.begin())),
      fmt::format(
          "token {} at index {} of the file is outside the vocabulary of {} "
          "tokens",
          *found,
          index + (found - tokens.begin()),
          vocab_size));
}

} // namespace weft::data
