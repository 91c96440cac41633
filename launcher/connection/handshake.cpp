#include "launcher/connection/handshake.h"

namespace weft::launcher {
namespace {

constexpr std::string_view kMagic = "WEFTRUN1";
constexpr size_t kClaimSize = kAnswerSize - 32;

void append(std::string& text, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    text += static_cast<char>(value >> (8 * i));
  }
}

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  for (size_t i = text.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(text[i]);
  }
  return value;
}

void copy_to(std::string_view text, Bits256& bits) {
  text.copy(bits.data(), bits.size());
}

Bits256 answer_mac(
    std::string_view client_hello,
    const Bits256& challenge,
    std::string_view key) {
  std::string text = "answer";
  text.append(view(challenge)).append(client_hello);
  return hmac_sha256(key, text);
}

Bits256 reply_mac(
    char status,
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key) {
  std::string text = "reply";
  text.append(1, status).append(view(challenge)).append(answer);
  return hmac_sha256(key, text);
}

} // namespace

std::string make_challenge(const Bits256& nonce) {
  return std::string(kMagic).append(view(nonce));
}

bool read_challenge(std::string_view message, Bits256& nonce) {
  if (message.size() != kChallengeSize || !message.starts_with(kMagic)) {
    return false;
  }
  copy_to(message.substr(kMagic.size()), nonce);
  return true;
}

std::string make_answer(
    const ClientHello& client_hello,
    const Bits256& challenge,
    std::string_view key) {
  std::string text(kMagic);
  append(text, static_cast<uint64_t>(client_hello.role), 4);
  append(text, client_hello.node, 4);
  append(text, client_hello.round, 8);
  text.append(view(client_hello.job)).append(view(client_hello.nonce));
  return text.append(view(answer_mac(text, challenge, key)));
}

bool read_answer(std::string_view message, ClientHello& client_hello) {
  if (message.size() != kAnswerSize || !message.starts_with(kMagic)) {
    return false;
  }
  const auto role = number(message.substr(8, 4));
  if (role != static_cast<uint64_t>(Role::kControl) &&
      role != static_cast<uint64_t>(Role::kStream)) {
    return false;
  }
  client_hello.role = static_cast<Role>(role);
  client_hello.node = static_cast<uint32_t>(number(message.substr(12, 4)));
  client_hello.round = number(message.substr(16, 8));
  copy_to(message.substr(24, 32), client_hello.job);
  copy_to(message.substr(56, 32), client_hello.nonce);
  return true;
}

bool verify_mac(
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key) {
  return answer.size() == kAnswerSize &&
         is_equal(
             answer.substr(kClaimSize),
             view(answer_mac(answer.substr(0, kClaimSize), challenge, key)));
}

std::string make_reply(
    AuthStatus status,
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key) {
  const char code = static_cast<char>(status);
  std::string text(8, '\0');
  text[0] = code;
  return text.append(view(reply_mac(code, answer, challenge, key)));
}

bool read_reply(
    std::string_view message,
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key,
    AuthStatus& status) {
  if (message.size() != kReplySize ||
      !is_equal(
          message.substr(8),
          view(reply_mac(message[0], answer, challenge, key)))) {
    return false;
  }
  status = static_cast<AuthStatus>(message[0]);
  return true;
}

Bits256 control_key(const std::string& token) {
  return hmac_sha256(token, "weftrun control 1");
}

Bits256 round_key(
    const std::string& token,
    const Bits256& job,
    uint64_t round,
    const Bits256& random) {
  std::string text = "weftrun epoch 1";
  append(text, round, 8);
  text.append(view(job)).append(view(random));
  return hmac_sha256(token, text);
}

Bits256 session_key(
    const ClientHello& client_hello,
    const Bits256& challenge,
    std::string_view key) {
  std::string text = "session";
  text.append(view(challenge)).append(view(client_hello.nonce));
  return hmac_sha256(key, text);
}

} // namespace weft::launcher
