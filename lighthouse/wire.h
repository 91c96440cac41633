#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lighthouse/messages.h"

namespace weft::lighthouse {

/// A request to the key-value store of the launcher, with the semantics of
/// c10d::Store.
struct StoreRequest {
  enum class Op {
    kSet,
    kGet,
    kAdd,
    kCompareSet,
    kDelete,
    kCheck,
    kWait,
    kCount,
    kList,
    /// Takes back the waiting request whose id is `amount`. Has an answer.
    kCancel,
  };
  /// Chosen by the client; repeated in the answer.
  uint64_t id = 0;
  Op op = Op::kGet;
  std::vector<std::string> keys = {};
  std::string value = {};
  /// The value that kCompareSet expects.
  std::string expected = {};
  int64_t amount = 0;
};

struct StoreAnswer {
  uint64_t id = 0;
  /// The result of kAdd and kCount; 1 or 0 for kDelete and kCheck.
  int64_t number = 0;
  /// The value of kGet and kCompareSet, the keys of kList.
  std::vector<std::string> values = {};
};

/// A message between a worker and its launcher.
using Message = std::variant<Report, Reply, StoreRequest, StoreAnswer>;

/// Thrown for bytes that are not a message of this version.
class WireError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the message as CBOR with its length before it.
std::string encode(const Message& message);

/// Takes messages from a stream of bytes.
class MessageReader {
 public:
  void append(std::string_view bytes) { buffer_ += bytes; }
  /// Returns the next complete message.
  /// Throws: WireError, after which the stream is of no use.
  std::optional<Message> take();

 private:
  std::string buffer_;
};

} // namespace weft::lighthouse
