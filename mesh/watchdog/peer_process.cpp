#include "mesh/watchdog/peer_process.h"

#include <optional>
#include <sstream>

#include <unistd.h>

#include "base/read_file.h"
#include "mesh/backends/shm/shm_backend.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

/// Returns the fields of /proc/PID/stat after the name, which is in parentheses
/// and may contain any character. Empty if there is no such process.
std::string stat_of(const std::string& pid) {
  const auto text = base::read_file("/proc/" + pid + "/stat").value_or("");
  const auto end = text.rfind(") ");
  return end == std::string::npos ? std::string() : text.substr(end + 2);
}

/// Returns the start time of a process, which identifies it: process IDs are
/// reused.
std::string start_of(const std::string& stat) {
  constexpr int kFieldsBefore = 19; // fields between name and start time
  std::istringstream in(stat);
  std::string field;
  for (int i = 0; i <= kFieldsBefore; ++i) {
    in >> field;
  }
  return field;
}

struct PeerProcess {
  std::string pid;
  /// The state in /proc/PID/stat: R, S, D, T, ... 0 means that there is no such
  /// process.
  char state = 0;
};

/// Finds a process described by current_process_text(). Returns nothing if it
/// is on another host.
std::optional<PeerProcess> find_process(const std::string& process) {
  std::istringstream in(process);
  PeerProcess found;
  std::string start;
  std::string domain;
  in >> found.pid >> start;
  std::getline(in >> std::ws, domain);
  if (domain.empty() || domain != shm_domain()) {
    return std::nullopt;
  }
  const auto stat = stat_of(found.pid);
  if (!stat.empty() && start_of(stat) == start) {
    found.state = stat.front();
  }
  return found;
}

} // namespace

std::string current_process_text() {
  const auto pid = std::to_string(getpid());
  return detail::concat(pid, " ", start_of(stat_of(pid)), " ", shm_domain());
}

std::string peer_process_text(const std::string& process) {
  const auto found = find_process(process);
  if (!found) {
    return {};
  }
  const auto name = "process " + found->pid;
  switch (found->state) {
    case 0:
      return name + " is gone";
    case 'T':
      return name + " is stopped (SIGSTOP)";
    case 't':
      return name + " is stopped by a debugger";
    case 'Z':
    case 'X':
      return name + " has died";
    case 'D':
      return name + " waits for a disk or a network file system";
    default:
      return {};
  }
}

bool is_stopped_process(const std::string& process) {
  const auto found = find_process(process);
  return found && (found->state == 'T' || found->state == 't');
}

std::string store_owner_text(const std::string& process) {
  const auto state = peer_process_text(process);
  return "Rank 0, which has the store, is not responding" +
         (state.empty() ? "" : " (" + state + ")");
}

} // namespace weft::mesh
