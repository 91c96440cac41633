#include "launcher/process/memory_events.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/first_line.h"
#include "base/parse_int.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;

/// cgroup v1 writes "no limit" as a number near the largest int64.
constexpr int64_t kNoLimit = int64_t{1} << 62;

/// Returns the number in a line "<key> <number>".
std::optional<int64_t> value_of(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.size() > key.size() && line.starts_with(key) &&
        line[key.size()] == ' ') {
      return base::parse_leading_int<int64_t>(
          std::string_view(line).substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

bool lists(const std::string& names, std::string_view name) {
  std::istringstream stream(names);
  for (std::string part; std::getline(stream, part, ',');) {
    if (part == name) {
      return true;
    }
  }
  return false;
}

struct Path {
  std::string path;
  bool is_v2 = false;
};

/// Returns the path from lines "4:memory:/a/b" of cgroup v1, or "0::/a/b" of
/// v2.
std::optional<Path> path_in_hierarchy(const fs::path& cgroups) {
  std::ifstream file(cgroups);
  std::optional<Path> unified;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string names = line.substr(first + 1, second - first - 1);
    if (lists(names, "memory")) {
      return Path{line.substr(second + 1), false};
    }
    if (names.empty()) {
      unified = Path{line.substr(second + 1), true};
    }
  }
  return unified;
}

struct Mount {
  std::string root;
  std::string folder;
};

/// Reads lines "35 31 0:32 <root> <folder> rw,... - cgroup cgroup rw,memory".
std::optional<Mount> mount_of(const fs::path& mounts, bool is_v2) {
  std::ifstream file(mounts);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped;
    Mount mount;
    fields >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    std::istringstream filesystem(line.substr(dash + 3));
    std::string type;
    std::string options;
    filesystem >> type >> skipped >> options;
    if (is_v2 ? type == "cgroup2"
              : type == "cgroup" && lists(options, "memory")) {
      return mount;
    }
  }
  return std::nullopt;
}

} // namespace

std::optional<MemoryCgroup> memory_cgroup(pid_t pid, const fs::path& proc) {
  auto found = path_in_hierarchy(proc / std::to_string(pid) / "cgroup");
  if (!found) {
    return std::nullopt;
  }
  const auto mount = mount_of(proc / "self" / "mountinfo", found->is_v2);
  if (!mount) {
    return std::nullopt;
  }
  std::string& path = found->path;
  if (mount->root != "/" && path.starts_with(mount->root)) {
    // A container sees only a part of the hierarchy.
    path.erase(0, mount->root.size());
  }
  MemoryCgroup cgroup{
      .folder = mount->folder + path,
      .mount = mount->folder,
      .is_v2 = found->is_v2};
  if (!oom_kills(cgroup)) {
    return std::nullopt;
  }
  return cgroup;
}

std::optional<int64_t> oom_kills(const MemoryCgroup& cgroup) {
  return value_of(
      cgroup.folder / (cgroup.is_v2 ? "memory.events" : "memory.oom_control"),
      "oom_kill");
}

std::optional<int64_t> memory_limit(const MemoryCgroup& cgroup) {
  const char* name = cgroup.is_v2 ? "memory.max" : "memory.limit_in_bytes";
  std::optional<int64_t> limit;
  for (fs::path folder = cgroup.folder;; folder = folder.parent_path()) {
    const auto value = base::parse_leading_int<int64_t>(
        // The text "max" has no number.
        base::first_line(folder / name).value_or(""));
    if (value && *value < kNoLimit) {
      limit = std::min(*value, limit.value_or(*value));
    }
    if (folder == cgroup.mount || folder == folder.parent_path()) {
      return limit;
    }
  }
}

std::optional<int64_t> host_oom_kills(const fs::path& proc) {
  return value_of(proc / "vmstat", "oom_kill");
}

KernelLog::KernelLog(const fs::path& path)
    : fd_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (fd_) {
    lseek(fd_.get(), 0, SEEK_END);
  }
}

bool KernelLog::reports_oom_kill(pid_t pid) {
  // Each read() returns one record.
  std::array<char, 8192> record;
  while (fd_) {
    const ssize_t size = read(fd_.get(), record.data(), record.size());
    if (size > 0) {
      text_.append(record.data(), static_cast<size_t>(size));
    } else if (size == 0 || (errno != EPIPE && errno != EINTR)) {
      // EPIPE does not end the loop. It means that records were overwritten
      // before they were read.
      break;
    }
  }
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (is_oom_kill(line, pid)) {
      return true;
    }
  }
  return false;
}

bool is_oom_kill(std::string_view line, pid_t pid) {
  return line.find(
             "ut of memory: Killed process " + std::to_string(pid) + " (") !=
         std::string_view::npos;
}

} // namespace weft::launcher
