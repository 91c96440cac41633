#pragma once

#include <cstddef>
#include <span>

#include "base/safe_writer.h"

namespace weft::base {

/// Loads the libraries that write_callstack() needs. To be called once, early.
void prepare_callstack();

/// Stores the program counter and return addresses of this thread, innermost
/// first. `context` is that of a signal handler, and the frames begin where the
/// signal arrived. Returns the number of frames. As async-signal-safe as
/// glibc's backtrace().
size_t read_callstack(std::span<void*> frames, const void* context);

/// Stores only the program counter, which needs no unwinding.
size_t read_program_counter(std::span<void*> frames, const void* context);

/// Writes the frames of this thread, innermost first, one per line: "#3
/// /lib/libx.so(+0x1234) _ZN1x1yEv+0x12", a format that weftrun and addr2line
/// read. `context` is that of a signal handler, and the frames begin where the
/// signal arrived. As async-signal-safe as glibc's backtrace(): it may wait for
/// a lock of the dynamic loader.
void write_callstack(SafeWriter& out, const void* context);

} // namespace weft::base
