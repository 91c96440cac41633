#pragma once

#include <string>

namespace weft::mesh {

/// Who this process is, for peer_process_text() elsewhere.
std::string current_process_text();

/// What has become of a process that does not answer, as far as one of its
/// host can see: "process 12 is stopped (SIGSTOP)". Empty if
/// `process` is of another host, or seems to be well.
std::string peer_process_text(const std::string& process);

/// Whether it is known to be stopped.
bool is_stopped_process(const std::string& process);

/// What is said of rank 0, whose process is `process`, when it does not answer.
std::string store_owner_text(const std::string& process);
/// What is said of rank 0 when it has ended.
inline constexpr const char* kStoreIsGone =
    "Rank 0 has ended, and the store with it";

} // namespace weft::mesh
