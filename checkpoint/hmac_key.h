#pragma once

#include <string>

namespace weft::checkpoint {

struct HmacKey {
  std::string text;
  /// Whose key is readable by others may be signed for by them.
  bool others_may_read = false;
};

/// The key that the file `path` holds, without a line feed at its end. It may
/// be a pipe.
/// Throws: mesh::UsageError "<path>: <why>" if it cannot be read or has not 16
/// to 4096 bytes.
HmacKey read_hmac_key(const std::string& path);

} // namespace weft::checkpoint
