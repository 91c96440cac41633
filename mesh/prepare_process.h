#pragma once

namespace weft::mesh {

/// What a program does before it opens anything, so that what its parent left
/// does no harm:
/// - /dev/null takes the place of standard streams that are closed (`<&- >&-`).
///   The next file that is opened would, and be written what is printed.
/// - A write beyond the limit of file sizes (`ulimit -f`) is an error, EFBIG,
/// that
///   is reported, instead of SIGXFSZ, which ends the process without a word. A
///   handler of the program's own stays.
/// Called by weftrun, cli::main() and World::from_env(). Needs no libtorch.
void prepare_process();

} // namespace weft::mesh
