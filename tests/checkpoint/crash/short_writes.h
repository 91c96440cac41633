#pragma once

#include <cstdint>

namespace weft::test {

/// pwritev() of this program takes no more than so many bytes, from 1 on in
/// turn, and every third call is interrupted (EINTR). 0: as the kernel likes.
extern int64_t max_bytes_a_write;

} // namespace weft::test
