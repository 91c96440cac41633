#pragma once

#include <cstddef>
#include <span>

#include "base/safe_writer.h"

namespace weft::base {

/// Loads what write_callstack() needs. To be called once, early.
void prepare_callstack();

/// Stores where this thread is and where it returns to, the innermost first, in
/// a signal handler from where the signal came: `context` is the handler's.
/// Says how many. As async-signal-safe as glibc's backtrace().
size_t read_callstack(std::span<void*> frames, const void* context);

/// The first of these alone, for which nothing has to be looked up.
size_t read_program_counter(std::span<void*> frames, const void* context);

/// Writes the frames of this thread, the innermost first, one a line:
/// "#3 /lib/libx.so(+0x1234) _ZN1x1yEv+0x12", as weftrun and addr2line read
/// them. In a signal handler they begin where the signal came: `context` is
/// the handler's. As async-signal-safe as glibc's backtrace(): it may wait for
/// a lock of the dynamic loader.
void write_callstack(SafeWriter& out, const void* context);

} // namespace weft::base
