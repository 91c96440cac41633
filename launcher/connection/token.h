#pragma once

#include <string>

namespace weft::launcher {

/// The secret that the launchers of a run share: the text of the file, or of
/// an inherited descriptor (which is closed), without the line's end. Exactly
/// one is given (an empty path, -1 otherwise).
/// Throws: LaunchError if neither is, the file belongs to another user or
/// others may read it, or what it holds is too short or too long; never with
/// the secret in it.
std::string read_token(const std::string& path, int fd);

} // namespace weft::launcher
