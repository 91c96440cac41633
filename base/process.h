#pragma once

// What programs do first and last. Needs no libtorch.

namespace weft::base {

/// Makes what the parent left harmless, before anything is opened. Opens
/// /dev/null in place of closed standard streams (`<&- >&-`), which
/// otherwise the next opened file would replace. Turns a write beyond the file
/// size limit (`ulimit -f`) into the error EFBIG instead of the signal SIGXFSZ,
/// unless the program has a handler. Called by weftrun, cli::main() and
/// World::from_env().
void prepare_process();

/// The message before exit code 2 in that case.
inline constexpr const char* kWorkingDirectoryRemoved =
    "the working directory has been removed: change to one that exists";
/// Returns true if the working directory was removed. May be called before
/// libtorch is initialized.
bool is_working_directory_removed();

/// Ends the process with this exit code without destroying static objects,
/// after it has flushed the standard streams. libtorch would unregister its ops
/// one by one, which takes 50 ms. For the end of main(). Sanitizers report when
/// a process ends in the normal way, so a program that is built with one does.
[[noreturn]] void end_process(int code);

} // namespace weft::base
