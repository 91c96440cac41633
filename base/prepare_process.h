#pragma once

// What programs do before they open anything, so that what their parent left
// does no harm. Needs no libtorch.

namespace weft::base {

/// Opens /dev/null in place of standard streams that are closed (`<&- >&-`):
/// the next file that is opened would take it, and be written what is printed.
/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error, EFBIG,
/// that is reported, instead of SIGXFSZ, which ends the process without a word;
/// a handler of the program's own stays.
/// Called by weftrun, cli::main() and World::from_env().
void prepare_process();

/// What a program says before it ends with exit code 2 if so.
inline constexpr const char* kWorkingDirectoryRemoved =
    "the working directory has been removed: change to one that exists";
/// May be called before libtorch is initialised.
bool is_working_directory_removed();

} // namespace weft::base
