#include "recipes/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "recipes/data/data_error.h"
#include "recipes/data/mapped_file.h"
#include "recipes/data/token_layout.h"

namespace weft::recipes {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const unsigned char>;

template <class T>
T load(Bytes bytes, int64_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Calls visit.operator()<T>() with the integer that `type` is.
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

std::optional<TokenOrigin> read_origin(const std::string& path) {
  std::ifstream file(origin_path(path), std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  try {
    const auto json = nlohmann::json::parse(file);
    const auto type = type_named(json.at("dtype").get<std::string>());
    if (!type) {
      refuse_data(origin_path(path), 0, "no known dtype");
    }
    return TokenOrigin{
        .tokenizer = json.at("tokenizer"),
        .fingerprint = json.at("fingerprint"),
        .vocab_size = json.at("vocab_size"),
        .type = *type,
        .num_tokens = json.at("tokens"),
        .modified_ns = json.at("modified_ns")};
  } catch (const nlohmann::json::exception& error) {
    refuse_data(
        origin_path(path),
        0,
        fmt::format("not what weft tokenize writes: {}", error.what()));
  }
}

// Where the tokens of a file lie.
struct Layout {
  TokenFormat format = TokenFormat::kRaw;
  TokenType type = TokenType::kUint16;
  int64_t begin = 0;
  int64_t size = 0;
};

bool has_llm_c_magic(Bytes bytes) {
  return bytes.size() >= sizeof(int32_t) &&
         std::any_of(
             kLlmCHeaders.begin(),
             kLlmCHeaders.end(),
             [&](const LlmCHeader& header) {
               return header.magic == load<int32_t>(bytes, 0);
             });
}

TokenFormat find_format(const std::string& path, Bytes bytes) {
  if (fs::exists(index_path(path))) {
    return TokenFormat::kMegatron;
  }
  return has_llm_c_magic(bytes) ? TokenFormat::kLlmC : TokenFormat::kRaw;
}

Layout raw_layout(const std::string& path, Bytes bytes, TokenType type) {
  const int64_t unit = size_bytes(type);
  const auto size = static_cast<int64_t>(bytes.size());
  if (size % unit != 0) {
    refuse_data(
        path,
        size - size % unit,
        fmt::format(
            "{} bytes are no whole number of {} tokens",
            size,
            to_string(type)));
  }
  return {.type = type, .size = size / unit};
}

// That a header's number of tokens is the file's.
void check_length(const std::string& path, Bytes bytes, const Layout& layout) {
  const auto found = static_cast<int64_t>(bytes.size());
  const int64_t expected = layout.begin + layout.size * size_bytes(layout.type);
  if (found != expected) {
    refuse_data(
        path,
        std::min(found, expected),
        fmt::format(
            "{} tokens of {} need {} bytes, but the file has {}",
            layout.size,
            to_string(layout.type),
            expected,
            found));
  }
}

Layout llm_c_layout(const std::string& path, Bytes bytes) {
  if (bytes.size() < LlmCHeader::kBytes) {
    refuse_data(
        path,
        static_cast<int64_t>(bytes.size()),
        fmt::format("ends inside of llm.c's header of 1024 bytes"));
  }
  const auto magic = load<int32_t>(bytes, 0);
  const auto header = std::find_if(
      kLlmCHeaders.begin(), kLlmCHeaders.end(), [&](const LlmCHeader& known) {
        return known.magic == magic;
      });
  if (header == kLlmCHeaders.end()) {
    refuse_data(
        path,
        0,
        fmt::format(
            "magic number {} is not one of llm.c's, {} or {}",
            magic,
            kLlmCHeaders[0].magic,
            kLlmCHeaders[1].magic));
  }
  if (load<int32_t>(bytes, 4) != header->version) {
    refuse_data(
        path,
        4,
        fmt::format(
            "version {}, expected {}",
            load<int32_t>(bytes, 4),
            header->version));
  }
  const auto size = load<int32_t>(bytes, 8);
  if (size < 0) {
    refuse_data(path, 8, fmt::format("{} tokens", size));
  }
  const Layout layout{
      .format = TokenFormat::kLlmC,
      .type = header->type,
      .begin = LlmCHeader::kBytes,
      .size = size};
  check_length(path, bytes, layout);
  return layout;
}

/// Reads FILE.idx.
class IndexReader {
 public:
  explicit IndexReader(const std::string& path)
      : path_(path), map_(path), bytes_(map_.bytes()) {}

  Layout read() {
    read_header();
    const auto unit = static_cast<uint64_t>(size_bytes(layout_.type));
    const int64_t pointers = kHeader + 4 * sequences_;
    uint64_t begin = 0;
    for (int64_t i = 0; i < sequences_; ++i) {
      const auto length = load<int32_t>(bytes_, kHeader + 4 * i);
      const auto pointer = load<int64_t>(bytes_, pointers + 8 * i);
      if (length < 0) {
        refuse(kHeader + 4 * i, fmt::format("a length of {}", length));
      }
      if (pointer != static_cast<int64_t>(begin)) {
        refuse(
            pointers + 8 * i,
            fmt::format(
                "sequence {} begins at byte {}, but the ones before it end at "
                "{}",
                i,
                pointer,
                begin));
      }
      begin += static_cast<uint64_t>(length) * unit;
    }
    check_documents(pointers + 8 * sequences_);
    layout_.size = static_cast<int64_t>(begin / unit);
    return layout_;
  }

 private:
  static constexpr int64_t kHeader = MegatronIndex::kHeaderBytes;

  [[noreturn]] void refuse(int64_t offset, const std::string& reason) {
    refuse_data(path_, offset, reason);
  }

  void read_header() {
    const auto size = static_cast<int64_t>(bytes_.size());
    if (size < kHeader) {
      refuse(size, "ends inside of the header of 34 bytes");
    }
    if (std::memcmp(bytes_.data(), MegatronIndex::kMagic.data(), 9) != 0) {
      refuse(0, "does not begin with MMIDIDX, as Megatron's index files do");
    }
    if (load<uint64_t>(bytes_, 9) != MegatronIndex::kVersion) {
      refuse(
          9, fmt::format("version {}, expected 1", load<uint64_t>(bytes_, 9)));
    }
    read_type();
    const auto sequences = load<uint64_t>(bytes_, 18);
    const auto documents = load<uint64_t>(bytes_, 26);
    const auto most = static_cast<uint64_t>(size);
    if (sequences > most || documents > most ||
        kHeader + 12 * sequences + 8 * documents != most) {
      refuse(
          std::min<int64_t>(size, 18),
          fmt::format(
              "{} sequences and {} document ends do not make {} bytes",
              sequences,
              documents,
              size));
    }
    sequences_ = static_cast<int64_t>(sequences);
    documents_ = static_cast<int64_t>(documents);
  }

  void read_type() {
    const auto code = load<uint8_t>(bytes_, 17);
    for (const auto& known : MegatronIndex::kCodes) {
      if (known.code == code) {
        layout_ = {.format = TokenFormat::kMegatron, .type = known.type};
        return;
      }
    }
    refuse(17, fmt::format("type {} is not one of tokens", code));
  }

  void check_documents(int64_t begin) {
    int64_t last = 0;
    for (int64_t i = 0; i < documents_; ++i) {
      const auto end = load<int64_t>(bytes_, begin + 8 * i);
      if (end < last || end > sequences_ || (i == 0 && end != 0)) {
        refuse(begin + 8 * i, fmt::format("document end {} is {}", i, end));
      }
      last = end;
    }
    if (documents_ == 0 || last != sequences_) {
      refuse(
          begin + 8 * std::max<int64_t>(documents_ - 1, 0),
          fmt::format("documents end at sequence {} of {}", last, sequences_));
    }
  }

  std::string path_;
  MappedFile map_;
  Bytes bytes_;
  Layout layout_;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
};

Layout megatron_layout(const std::string& path, Bytes bytes) {
  const Layout layout = IndexReader(index_path(path)).read();
  const auto found = static_cast<int64_t>(bytes.size());
  const int64_t expected = layout.size * size_bytes(layout.type);
  if (found != expected) {
    refuse_data(
        path,
        std::min(found, expected),
        fmt::format(
            "has {} bytes, but \"{}\" speaks of {} tokens of {}, {} bytes",
            found,
            index_path(path),
            layout.size,
            to_string(layout.type),
            expected));
  }
  return layout;
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

std::string to_string(TokenFormat format) {
  constexpr std::array<const char*, 4> kNames = {
      "auto", "raw", "llm.c", "megatron"};
  return kNames.at(static_cast<size_t>(format));
}

std::string index_path(const std::string& path) {
  return fs::path(path).replace_extension(".idx").native();
}

std::string origin_path(const std::string& path) {
  return path + ".json";
}

struct TokenFile::Map {
  explicit Map(const std::string& path) : file(path) {}
  MappedFile file;
  Layout layout;
  std::optional<TokenOrigin> origin;
};

TokenFile TokenFile::open(
    const std::string& path,
    TokenFormat format,
    std::optional<TokenType> type) {
  auto map = std::make_shared<Map>(path);
  const Bytes bytes = map->file.bytes();
  map->origin = read_origin(path);
  if (format == TokenFormat::kAuto) {
    format = find_format(path, bytes);
  }
  Layout& layout = map->layout;
  if (format == TokenFormat::kRaw) {
    const TokenType written =
        map->origin ? map->origin->type : TokenType::kUint16;
    layout = raw_layout(path, bytes, type.value_or(written));
  } else {
    layout = format == TokenFormat::kLlmC ? llm_c_layout(path, bytes)
                                          : megatron_layout(path, bytes);
  }
  if (type && *type != layout.type) {
    refuse_data(
        path,
        0,
        fmt::format(
            "holds {}, not {}", to_string(layout.type), to_string(*type)));
  }
  if (map->origin && (map->origin->num_tokens != layout.size ||
                      map->origin->type != layout.type)) {
    refuse_data(
        path,
        layout.begin,
        fmt::format(
            "holds {} tokens of {}, but \"{}\" speaks of {} of {}",
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
        "[read] index + length <= size: {} + {} vs {}. Samples lie inside the "
        "data.",
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
  uint64_t largest = 0; // of negative ones too
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
          "token {} (number {} of the file) is outside of the vocabulary of {}",
          *found,
          index + (found - tokens.begin()),
          vocab_size));
}

} // namespace weft::recipes
