#pragma once

namespace weft::base {

/// Gives this thread a second stack for signal handlers, until it ends: so an
/// overflow of its own one is reported by the crash handler. Keeps one that is
/// there. The second call costs some nanoseconds.
void prepare_thread_for_crash();

} // namespace weft::base
