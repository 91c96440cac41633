#pragma once

#include <string>

namespace weft::launcher {

/// Returns the secret that the launchers of a run share, read from a file or
/// from an inherited descriptor (which is closed), without the line end.
/// Exactly one of them must be given; an unused path is empty, an unused
/// descriptor -1.
/// Throws: LaunchError if not exactly one is given, the file belongs to another
/// user than this one or root, its mode grants access to other users, or the
/// secret is too short or too long. The message never contains the secret.
std::string read_token(const std::string& path, int fd);

} // namespace weft::launcher
