#include "tokenizers/tokenizer_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/fnv.h"
#include "base/read_file.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {

std::string read_tokenizer_file(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr uintmax_t kMaxBytes = 256 << 20;
  const auto fail = [&](const std::string& reason) {
    mesh::throw_error<TokenizerError>(fmt::format("{}: {}", path, reason));
  };
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail(error ? error.message() : std::strerror(ENOENT));
  }
  if (!fs::is_regular_file(status)) {
    fail("is not a regular file");
  }
  if (fs::file_size(path, error) > kMaxBytes) {
    fail(fmt::format("is larger than {} bytes", kMaxBytes));
  }
  auto content = base::read_file(path);
  if (!content) {
    fail("cannot be read");
  }
  return std::move(*content);
}

std::string content_fingerprint(std::string_view content) {
  return fmt::format("{:016x}", base::fnv1a(content));
}

void check_text(std::string_view text) {
  if (const auto offset = find_invalid_utf8(text)) {
    throw InvalidText(
        {"", "", 0},
        fmt::format(
            "text is not UTF-8 at byte {}: 0x{:02x}. Convert it (iconv), or "
            "use the tokenizer \"byte\"",
            *offset,
            static_cast<unsigned char>(text[*offset])),
        *offset);
  }
}

void check_token(int64_t token, int64_t vocab_size) {
  if (token < 0 || token >= vocab_size) {
    mesh::throw_error<TokenizerError>(fmt::format(
        "token {} is out of range for a vocabulary of {} tokens",
        token,
        vocab_size));
  }
}

} // namespace weft::tokenizers
