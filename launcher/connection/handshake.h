#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/connection/key.h"

namespace weft::launcher {

// Note [Rendezvous handshake]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Host 0's launcher listens at the endpoint. Both sides prove that they know
// the token before either looks at anything else, in three messages of fixed
// size, so that nothing an unknown peer sends is ever taken for a length:
//
//   host 0 -> challenge: magic, nonce
//          <- answer:    magic, role, node, epoch, job, own nonce, MAC
//   host 0 -> reply:     status, MAC
//
// Both MACs are over both nonces, so neither can be replayed. A control
// connection is keyed by the token alone; a stream to the store by a key made
// of the token, the job, the number of the start ("epoch") and a random number
// that host 0 draws for it: a worker of an earlier start cannot make one.

/// The purpose of a connection.
enum class Role : char { kControl = 'c', kStream = 's' };

enum class AuthStatus : char { kAccepted = 0, kOtherJob = 1 };

/// The data that the connecting side sends about itself.
struct ClientHello {
  Role role = Role::kControl;
  uint32_t node = 0;
  uint64_t round = 0;
  /// The SHA-256 of the job's id.
  Bits256 job{};
  Bits256 nonce{};
};

constexpr size_t kChallengeSize = 8 + 32;
constexpr size_t kAnswerSize = 8 + 4 + 4 + 8 + 32 + 32 + 32;
constexpr size_t kReplySize = 8 + 32;

std::string make_challenge(const Bits256& nonce);
/// Parses a challenge. Returns false if the message is not one.
bool read_challenge(std::string_view message, Bits256& nonce);

std::string make_answer(
    const ClientHello& client_hello,
    const Bits256& challenge,
    std::string_view key);
/// Parses the data in an answer, which is not authenticated yet. Returns false
/// if the message is not an answer.
bool read_answer(std::string_view message, ClientHello& client_hello);
/// Returns true if the sender of the answer knows the key and the challenge.
bool verify_mac(
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key);

std::string make_reply(
    AuthStatus status,
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key);
/// Parses and authenticates a reply. Returns false if its sender does not know
/// the key.
bool read_reply(
    std::string_view message,
    std::string_view answer,
    const Bits256& challenge,
    std::string_view key,
    AuthStatus& status);

/// Returns the key of control connections.
Bits256 control_key(const std::string& token);
/// Returns the key with which workers authenticate their connections to the
/// store. Each start of the workers has its own key: `round` is the number of
/// the start, and `random` has the random bits that host 0 generated for it.
Bits256 round_key(
    const std::string& token,
    const Bits256& job,
    uint64_t round,
    const Bits256& random);
/// Returns the key that authenticates the messages of one connection after the
/// handshake.
Bits256 session_key(
    const ClientHello& client_hello,
    const Bits256& challenge,
    std::string_view key);

} // namespace weft::launcher
