#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::mesh {

/// Where a crash is reported, and as whose.
struct CrashContext {
  /// Empty: to standard error alone.
  std::string error_file;
  int64_t rank = 0;
};

/// From now on a crash of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
/// SIGABRT, an uncaught exception) leaves an error file (base/error_report.h)
/// with the signal, the address, the thread, the newest collective and a
/// backtrace, and a last line `ERROR <code> rank=<r> op=crash ...` on standard
/// error. Then it dies of the signal as if nobody had looked, or goes on to the
/// handler that was there before. After a std::bad_alloc that nobody catches it
/// exits with 137. A stack overflow is reported in threads that have called
/// this, prepare_thread_for_crash() (base/stacks/crash_stack.h)
/// or note_collective(); in others the kernel
/// ends the process without a word.
/// To be called once, early; later calls only change the context.
void install_crash_handler(const CrashContext& context);

/// The same with what the launcher says: TORCHELASTIC_ERROR_FILE, and the rank.
void install_crash_handler();

/// The same in a rank of a launcher (TORCHELASTIC_ERROR_FILE is set), for the
/// signals that nobody handles yet; not where WEFT_CRASH_HANDLER is 0. What
/// World::from_env() does. Costs nothing once the handler is installed.
void install_crash_handler_of_rank();

/// Tells a crash's report which collective began last. For ledgers; costs some
/// nanoseconds.
void note_collective(
    uint64_t sequence,
    std::string_view op,
    std::string_view name);

/// What note_collective() was told last: "all_reduce of layers.0.wq #812";
/// empty if nothing was, or somebody tells it just now.
std::string newest_collective();

} // namespace weft::mesh
