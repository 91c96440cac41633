#pragma once

// What programs do before they open anything, so that what their parent left
// does no harm. Needs no libtorch.

namespace weft::base {

/// Opens /dev/null in place of closed standard streams (`<&- >&-`), which
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

} // namespace weft::base
