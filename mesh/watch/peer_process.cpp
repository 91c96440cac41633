#include "mesh/watch/peer_process.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include <unistd.h>

#include "mesh/error.h"
#include "mesh/shm_backend.h"

namespace weft::mesh {
namespace {

/// What follows the name, which is in parentheses and may hold any character.
/// Empty if there is no such process.
std::string stat_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  const std::string text{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto end = text.rfind(") ");
  return end == std::string::npos ? std::string() : text.substr(end + 2);
}

/// When the process began: its number may be another's by now.
std::string start_of(const std::string& stat) {
  constexpr int kFieldsBefore = 19; // of those after the name
  std::istringstream in(stat);
  std::string field;
  for (int i = 0; i <= kFieldsBefore; ++i) {
    in >> field;
  }
  return field;
}

} // namespace

std::string own_process_text() {
  const auto pid = std::to_string(getpid());
  return detail::concat(pid, " ", start_of(stat_of(pid)), " ", shm_domain());
}

std::string peer_process_text(const std::string& process) {
  std::istringstream in(process);
  std::string pid;
  std::string start;
  std::string domain;
  in >> pid >> start;
  std::getline(in >> std::ws, domain);
  if (domain.empty() || domain != shm_domain()) {
    return {};
  }
  const auto stat = stat_of(pid);
  if (stat.empty() || start_of(stat) != start) {
    return "process " + pid + " is gone";
  }
  switch (stat.front()) {
    case 'T':
      return "process " + pid + " is stopped (SIGSTOP)";
    case 't':
      return "process " + pid + " is stopped by a debugger";
    case 'Z':
    case 'X':
      return "process " + pid + " has died";
    case 'D':
      return "process " + pid + " waits for a disk or a network file system";
    default:
      return {};
  }
}

} // namespace weft::mesh
