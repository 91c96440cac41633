#pragma once

#include <string>

namespace weft::mesh {

/// " (ulimit -n is 32)" where a limit of this process explains the errno
/// EMFILE, EFBIG or ENOMEM; else nothing. For the end of a sentence with
/// strerror().
std::string limit_behind(int error);

/// Throws: UsageError if this process may open fewer files than a rank among
/// others needs for its connections and checkpoints.
void check_open_file_limit();

} // namespace weft::mesh
