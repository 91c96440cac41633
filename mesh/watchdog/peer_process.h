#pragma once

#include <string>

namespace weft::mesh {

/// Identifies this process, for peer_process_text() in other processes.
std::string current_process_text();

/// Describes why a process on this host does not respond: "process 12 is
/// stopped (SIGSTOP)". Empty if `process` is on another host or seems to be
/// running.
std::string peer_process_text(const std::string& process);

/// Returns true if the process is known to be stopped.
bool is_stopped_process(const std::string& process);

/// Describes why rank 0, whose process is `process`, does not respond.
std::string store_owner_text(const std::string& process);
/// The description of rank 0 after it has ended.
inline constexpr const char* kStoreIsGone =
    "Rank 0 has ended, and the store with it";

} // namespace weft::mesh
