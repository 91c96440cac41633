#pragma once

#include <string>

namespace weft::mesh {

/// Returns " (ulimit -n is 32)" if a limit of this process explains the errno
/// EMFILE, EFBIG or ENOMEM, otherwise "". To be appended to strerror().
std::string limit_behind(int error);

/// Throws: UsageError if this process may open fewer files than a rank needs
/// for its connections and checkpoints.
void check_open_file_limit();

} // namespace weft::mesh
