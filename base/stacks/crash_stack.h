#pragma once

namespace weft::base {

/// Gives this thread an alternate signal stack until it ends, so that the crash
/// handler can report a stack overflow. Keeps an existing one. Later calls take
/// a few nanoseconds.
void prepare_thread_for_crash();

} // namespace weft::base
