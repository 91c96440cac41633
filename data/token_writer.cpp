#include "data/token_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data/data_error.h"
#include "data/token_layout.h"
#include "mesh/error/error.h"

namespace weft::data {
namespace {

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

[[noreturn]] void refuse_output(
    const std::string& path,
    const std::string& reason) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("cannot write \"{}\": {}", path, reason));
}

// Returns true if `path` is anything, including a dangling link.
bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(
      std::filesystem::symlink_status(path, ignored));
}

// Returns the format of the tokens at `path`. Nullopt if their companion file
// does not show that `weft tokenize` wrote them.
std::optional<TokenFormat> earlier_format(const std::string& path) {
  try {
    const auto origin = read_origin(path);
    if (origin && origin->format != TokenFormat::kAuto) {
      return origin->format;
    }
  } catch (const DataError&) {
    // Another program wrote the companion file.
  }
  return std::nullopt;
}

void check_name(const std::string& path, TokenFormat format) {
  for (const char* companion : {".idx", ".json"}) {
    if (path.ends_with(companion)) {
      refuse_output(
          path,
          fmt::format(
              "{} is the extension of a file that is written next to the "
              "tokens. Use another name, such as x.bin",
              companion));
    }
  }
  if (format == TokenFormat::kMegatron && !path.ends_with(".bin")) {
    refuse_output(
        path,
        "the name of a Megatron file must end in .bin, because its index ends "
        "in .idx");
  }
}

void check_replaceable(const std::string& path, bool force) {
  const std::optional<TokenFormat> earlier = earlier_format(path);
  for (const std::string& each : {path, origin_path(path), index_path(path)}) {
    if (!is_there(each)) {
      continue;
    }
    std::error_code ignored;
    const auto status = std::filesystem::status(each, ignored);
    if (std::filesystem::is_directory(status)) {
      refuse_output(each, "is a folder");
    }
    if (std::filesystem::exists(status) &&
        !std::filesystem::is_regular_file(status)) {
      refuse_output(each, "is not a regular file");
    }
    // The index may belong to other tokens: x.raw and x.bin share x.idx.
    const bool is_earlier = each == index_path(path)
                                ? earlier == TokenFormat::kMegatron
                                : earlier.has_value();
    if (!is_earlier && !force) {
      refuse_output(
          each,
          "the file exists, and weft tokenize did not write it for this "
          "output. Use another name, or replace it with --force");
    }
  }
}

} // namespace

std::optional<TokenType> type_for(TokenFormat format, int64_t vocab_size) {
  if (vocab_size <= 1 << 16) {
    return TokenType::kUint16;
  }
  switch (format) {
    case TokenFormat::kMegatron:
      return TokenType::kInt32;
    case TokenFormat::kLlmC:
      return TokenType::kUint32;
    default:
      return std::nullopt;
  }
}

TokenWriter::TokenWriter(
    std::string path,
    TokenFormat format,
    TokenType type,
    bool force)
    : path_(std::move(path)), format_(format), type_(type) {
  check_name(path_, format_);
  check_replaceable(path_, force);
  has_stale_index_ =
      format_ != TokenFormat::kMegatron && is_there(index_path(path_));
  file_ = std::fopen(temporary(path_).c_str(), "wb");
  if (file_ == nullptr) {
    fail(path_);
  }
  if (format_ == TokenFormat::kLlmC) {
    write_header(0);
  }
}

TokenWriter::~TokenWriter() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
  std::error_code ignored;
  std::filesystem::remove(temporary(path_), ignored);
  std::filesystem::remove(temporary(index_path(path_)), ignored);
  std::filesystem::remove(temporary(origin_path(path_)), ignored);
}

void TokenWriter::fail(const std::string& path) const {
  refuse_output(path, std::strerror(errno));
}

std::string TokenWriter::temporary(const std::string& path) const {
  return fmt::format("{}.{}.tmp", path, ::getpid());
}

void TokenWriter::write(const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file_) != size) {
    fail(path_);
  }
}

void TokenWriter::add(std::span<const int64_t> tokens) {
  const auto unit = static_cast<size_t>(size_bytes(type_));
  buffer_.resize(tokens.size() * unit);
  for (size_t i = 0; i < tokens.size(); ++i) {
    // Tokens are little-endian, in memory and in the file.
    std::memcpy(buffer_.data() + i * unit, &tokens[i], unit);
  }
  write(buffer_.data(), buffer_.size());
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::end_document() {
  const int64_t length = num_tokens_ - document_begin_;
  if (length > std::numeric_limits<int32_t>::max() &&
      format_ == TokenFormat::kMegatron) {
    refuse_output(
        path_,
        fmt::format(
            "a document of {} tokens is too long for the Megatron format. "
            "Split the document",
            length));
  }
  document_begin_ = num_tokens_;
  ++num_documents_;
  if (format_ == TokenFormat::kMegatron) {
    lengths_.push_back(static_cast<int32_t>(length));
  }
}

void TokenWriter::write_header(int64_t num_tokens) {
  if (num_tokens > std::numeric_limits<int32_t>::max()) {
    refuse_output(
        path_,
        fmt::format(
            "{} tokens are too many for one llm.c file. Write several files, "
            "or use another format",
            num_tokens));
  }
  const LlmCHeader& known = kLlmCHeaders[type_ == kLlmCHeaders[0].type ? 0 : 1];
  std::array<int32_t, LlmCHeader::kBytes / 4> header{
      known.magic, known.version, static_cast<int32_t>(num_tokens)};
  write(header.data(), sizeof(header));
}

void TokenWriter::write_index() const {
  std::string bytes(MegatronIndex::kMagic);
  put(bytes, MegatronIndex::kVersion);
  for (const auto& known : MegatronIndex::kCodes) {
    if (known.type == type_) {
      put(bytes, known.code);
    }
  }
  put(bytes, static_cast<uint64_t>(lengths_.size()));
  put(bytes, static_cast<uint64_t>(lengths_.size() + 1));
  for (const int32_t length : lengths_) {
    put(bytes, length);
  }
  int64_t begin = 0;
  for (const int32_t length : lengths_) {
    put(bytes, begin);
    begin += length * size_bytes(type_);
  }
  for (size_t document = 0; document <= lengths_.size(); ++document) {
    put(bytes, static_cast<int64_t>(document));
  }
  std::ofstream file(temporary(index_path(path_)), std::ios::binary);
  file << bytes << std::flush;
  if (!file) {
    fail(index_path(path_));
  }
}

void TokenWriter::write_origin(TokenOrigin origin) const {
  struct stat status {};
  if (::stat(temporary(path_).c_str(), &status) != 0) {
    fail(path_);
  }
  const nlohmann::ordered_json json = {
      {"tokenizer", origin.tokenizer},
      {"fingerprint", origin.fingerprint},
      {"vocab_size", origin.vocab_size},
      {"format", to_string(format_)},
      {"dtype", to_string(type_)},
      {"tokens", num_tokens_},
      {"documents", num_documents_},
      {"modified_ns",
       status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec}};
  std::ofstream file(temporary(origin_path(path_)), std::ios::binary);
  file << base::strict_json_text(json, 2) << '\n' << std::flush;
  if (!file) {
    fail(origin_path(path_));
  }
}

void TokenWriter::remove_stale_index() const {
  if (has_stale_index_ && std::remove(index_path(path_).c_str()) != 0 &&
      errno != ENOENT) {
    fail(index_path(path_));
  }
}

void TokenWriter::finish(TokenOrigin origin) {
  if (format_ == TokenFormat::kLlmC) {
    if (std::fseek(file_, 0, SEEK_SET) != 0) {
      fail(path_);
    }
    write_header(num_tokens_);
  }
  std::FILE* file = std::exchange(file_, nullptr);
  const bool synced = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  if (std::fclose(file) != 0 || !synced) {
    fail(path_);
  }
  std::vector<std::string> paths = {origin_path(path_), path_};
  if (format_ == TokenFormat::kMegatron) {
    write_index();
    // The index comes after the file with the origin. If this process dies in
    // between, the next one sees that it may replace the files.
    paths.insert(paths.begin() + 1, index_path(path_));
  }
  write_origin(std::move(origin));
  remove_stale_index();
  for (const std::string& path : paths) {
    if (std::rename(temporary(path).c_str(), path.c_str()) != 0) {
      fail(path);
    }
  }
}

} // namespace weft::data
