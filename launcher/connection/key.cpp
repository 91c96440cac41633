#include "launcher/connection/key.h"

#include <dlfcn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/opensslv.h>
#include <sys/random.h>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

unsigned char* bytes(Bits256& bits) {
  return reinterpret_cast<unsigned char*>(bits.data());
}

void check(bool ok) {
  if (!ok) {
    throw LaunchError("OpenSSL could not compute SHA-256.");
  }
}

/// The functions that are used of libcrypto, which is loaded with the first
/// digest. Loading takes longer than everything else that weftrun does before
/// it starts its workers, and a run on one host never needs it.
struct OpenSsl {
  decltype(&::EVP_sha256) evp_sha256;
  decltype(&::EVP_Digest) digest;
  decltype(&::HMAC) hmac;
  decltype(&::CRYPTO_memcmp) compare;
};

OpenSsl load_openssl() {
  const std::string name =
      fmt::format("libcrypto.so.{}", OPENSSL_SHLIB_VERSION);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto find = [&]<typename F>(F& function, const char* symbol) {
    function = library == nullptr ? nullptr
                                  : reinterpret_cast<F>(dlsym(library, symbol));
    if (function == nullptr) {
      throw LaunchError(fmt::format(
          "a run on several hosts requires OpenSSL's {}, which cannot be "
          "loaded: {}. Install it (Debian: libssl3).",
          name,
          dlerror()));
    }
  };
  OpenSsl openssl{};
  find(openssl.evp_sha256, "EVP_sha256");
  find(openssl.digest, "EVP_Digest");
  find(openssl.hmac, "HMAC");
  find(openssl.compare, "CRYPTO_memcmp");
  return openssl;
}

const OpenSsl& openssl() {
  static const OpenSsl loaded = load_openssl();
  return loaded;
}

} // namespace

Bits256 random_bits() {
  Bits256 bits;
  if (getrandom(bits.data(), bits.size(), 0) !=
      static_cast<ssize_t>(bits.size())) {
    throw_errno("getrandom");
  }
  return bits;
}

Bits256 sha256(std::string_view text) {
  Bits256 digest;
  unsigned int size = 0;
  check(
      openssl().digest(
          text.data(),
          text.size(),
          bytes(digest),
          &size,
          openssl().evp_sha256(),
          nullptr) == 1);
  return digest;
}

Bits256 hmac_sha256(std::string_view key, std::string_view text) {
  Bits256 digest;
  unsigned int size = 0;
  check(
      openssl().hmac(
          openssl().evp_sha256(),
          key.data(),
          static_cast<int>(key.size()),
          reinterpret_cast<const unsigned char*>(text.data()),
          text.size(),
          bytes(digest),
          &size) != nullptr);
  return digest;
}

bool is_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         openssl().compare(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const Bits256& bits) {
  std::string text;
  for (const char c : bits) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(std::string_view text, Bits256& bits) {
  if (text.size() != 2 * bits.size()) {
    return false;
  }
  for (size_t i = 0; i < bits.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) {
      return false;
    }
    bits[i] = static_cast<char>(high * 16 + low);
  }
  return true;
}

} // namespace weft::launcher
