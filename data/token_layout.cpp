#include "data/token_layout.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "data/data_error.h"
#include "data/mapped_file.h"

namespace weft::data {
namespace {

using Bytes = std::span<const unsigned char>;
using Layout = TokenLayout;

template <class T>
T load(Bytes bytes, int64_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

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
  if (std::filesystem::exists(index_path(path))) {
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
            "the file has {} bytes, which is not a multiple of the size of a "
            "{} token",
            size,
            to_string(type)));
  }
  return {.type = type, .size = size / unit};
}

// Checks that the number of tokens in a header matches the size of the file.
void check_length(const std::string& path, Bytes bytes, const Layout& layout) {
  const auto found = static_cast<int64_t>(bytes.size());
  const int64_t expected = layout.begin + layout.size * size_bytes(layout.type);
  if (found != expected) {
    refuse_data(
        path,
        std::min(found, expected),
        fmt::format(
            "{} tokens of type {} need {} bytes, but the file has {}",
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
        fmt::format("the file ends within llm.c's header of 1024 bytes"));
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
            "got magic number {}, expected one of llm.c's: {} or {}",
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
                "sequence {} begins at byte {}, but the previous sequences end "
                "at byte {}",
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
      refuse(size, "the file ends within the header of 34 bytes");
    }
    if (std::memcmp(bytes_.data(), MegatronIndex::kMagic.data(), 9) != 0) {
      refuse(
          0,
          "the file does not begin with MMIDIDX, so it is not a Megatron "
          "index");
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
              "{} sequences and {} document ends do not match the file size of "
              "{} bytes",
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
    refuse(17, fmt::format("type {} is not a token type", code));
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
          fmt::format(
              "the last document ends at sequence {}, but there are {} "
              "sequences",
              last,
              sequences_));
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
            "the file has {} bytes, but \"{}\" states {} tokens of type {}, "
            "which need {} bytes",
            found,
            index_path(path),
            layout.size,
            to_string(layout.type),
            expected));
  }
  return layout;
}

} // namespace

TokenLayout find_layout(
    const std::string& path,
    std::span<const unsigned char> bytes,
    TokenFormat format,
    TokenType raw_type) {
  switch (format == TokenFormat::kAuto ? find_format(path, bytes) : format) {
    case TokenFormat::kLlmC:
      return llm_c_layout(path, bytes);
    case TokenFormat::kMegatron:
      return megatron_layout(path, bytes);
    default:
      return raw_layout(path, bytes, raw_type);
  }
}

std::string index_path(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".idx").native();
}

std::string origin_path(const std::string& path) {
  return path + ".json";
}

} // namespace weft::data
