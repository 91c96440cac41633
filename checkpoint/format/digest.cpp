#include "checkpoint/format/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <c10/util/Exception.h>

namespace weft::checkpoint {
namespace {

constexpr std::string_view kHexAlphabet = "0123456789abcdef";

// Looks the algorithm up once, because a lookup takes as long as hashing 1 KiB.
const EVP_MD* algorithm() {
  static const EVP_MD* const found = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  TORCH_INTERNAL_ASSERT(found != nullptr, "OpenSSL has no SHA-256");
  return found;
}

unsigned char* as_uchars(Sha256& digest) {
  return reinterpret_cast<unsigned char*>(digest.data());
}

} // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 digest;
  unsigned int size = 0;
  const int ok = EVP_Digest(
      bytes.data(),
      bytes.size(),
      as_uchars(digest),
      &size,
      algorithm(),
      nullptr);
  TORCH_INTERNAL_ASSERT(ok == 1 && size == digest.size());
  return digest;
}

Sha256 hmac_sha256(std::string_view key, std::string_view text) {
  Sha256 digest;
  unsigned int size = 0;
  const auto* ok = HMAC(
      algorithm(),
      key.data(),
      static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(text.data()),
      text.size(),
      as_uchars(digest),
      &size);
  TORCH_INTERNAL_ASSERT(ok != nullptr && size == digest.size());
  return digest;
}

bool is_equal(const Sha256& a, const Sha256& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const Sha256& digest) {
  std::string text;
  text.reserve(2 * digest.size());
  for (const auto byte : digest) {
    const auto value = std::to_integer<size_t>(byte);
    text += kHexAlphabet[value / 16];
    text += kHexAlphabet[value % 16];
  }
  return text;
}

std::optional<Sha256> sha256_from_hex(std::string_view text) {
  Sha256 digest;
  if (text.size() != 2 * digest.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < digest.size(); ++i) {
    const auto high = kHexAlphabet.find(text[2 * i]);
    const auto low = kHexAlphabet.find(text[2 * i + 1]);
    if (high == kHexAlphabet.npos || low == kHexAlphabet.npos) {
      return std::nullopt;
    }
    digest[i] = static_cast<std::byte>(16 * high + low);
  }
  return digest;
}

} // namespace weft::checkpoint
