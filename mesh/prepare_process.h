#pragma once

namespace weft::mesh {

/// Opens /dev/null for standard input, output and error where the parent has
/// closed them (`<&- >&-`): the next file that the process opens would take
/// their place, and be written what is printed.
/// Called by weftrun, cli::main() and World::from_env() before they open
/// anything. Without libtorch.
void open_standard_streams();

} // namespace weft::mesh
