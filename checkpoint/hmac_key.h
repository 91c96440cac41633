#pragma once

#include <string>

namespace weft::checkpoint {

struct HmacKey {
  std::string text;
  /// True if other users can read the key file, and so forge signatures.
  bool others_may_read = false;
};

/// Reads the key from the file `path`, which may be a pipe, without a line feed
/// at its end.
/// Throws: mesh::UsageError "<path>: <why>" if the file cannot be read or does
/// not have 16 to 4096 bytes.
HmacKey read_hmac_key(const std::string& path);

} // namespace weft::checkpoint
