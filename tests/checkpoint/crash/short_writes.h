#pragma once

#include <cstdint>

namespace weft::test {

/// The limit of this program's pwritev(): calls write 1, 2, ... up to this
/// number of bytes, and every third call fails with EINTR. 0 means no limit.
extern int64_t max_bytes_a_write;

} // namespace weft::test
