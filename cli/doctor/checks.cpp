#include "cli/doctor/checks.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ATen/Version.h>
#include <torch/version.h>

#include <fmt/format.h>

#include "base/memory_allocator.h"
#include "base/usable_cores.h"
#include "matmul/library.h"
#include "mesh/device/device.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMebibyte = 1 << 20;
/// The requirements of a small run with a few ranks.
constexpr uint64_t kMinSharedMemory = 64 * kMebibyte;
constexpr uint64_t kMinMemory = 512 * kMebibyte;
constexpr uint64_t kMinFiles = 256;

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the rest of the first line of `path` that starts with `key`.
std::string value_of(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      const size_t value = line.find_first_not_of(" \t:", key.size());
      return value == std::string::npos ? "" : line.substr(value);
    }
  }
  return "";
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop != text.data() ? std::optional(value)
                                                     : std::nullopt;
}

#ifdef __clang__
constexpr std::string_view kCompiler = "Clang " __clang_version__;
#else
constexpr std::string_view kCompiler = "GCC " __VERSION__;
#endif

Check versions() {
  return {
      "versions",
      fmt::format(
          "weft {}, libtorch {}, compiled by {}",
          WEFT_VERSION,
          TORCH_VERSION,
          kCompiler),
      ""};
}

Check cpu() {
  const std::string nodes = read_line("/sys/devices/system/node/online");
  return {
      "cpu",
      fmt::format(
          "{}; {} of {} CPUs to use; NUMA nodes {}; vectors {}",
          value_of("/proc/cpuinfo", "model name"),
          base::usable_cores(),
          sysconf(_SC_NPROCESSORS_ONLN),
          nodes.empty() ? "unknown" : nodes,
          at::get_cpu_capability()),
      ""};
}

Check products() {
  const auto choice = matmul::choose_library(c10::ScalarType::Float);
  return {
      "products",
      fmt::format(
          "{} ({}); bfloat16 {}",
          matmul::to_string(choice.library),
          choice.reason,
          matmul::this_host().has_bfloat16
              ? "by oneDNN"
              : "is computed in float32, because this processor has no "
                "bfloat16 matmuls"),
      ""};
}

/// Returns the smallest limit of this process's memory cgroup and the cgroups
/// above it.
std::optional<uint64_t> cgroup_limit() {
  std::ifstream file("/proc/self/cgroup");
  std::optional<uint64_t> limit;
  for (std::string line; std::getline(file, line);) {
    const bool is_v1 = line.find(":memory:") != std::string::npos;
    if (!is_v1 && !line.starts_with("0::")) {
      continue;
    }
    const fs::path mount = is_v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    const std::string path = line.substr(line.rfind(':') + 1);
    for (fs::path folder = mount.string() + path;
         folder.string().size() >= mount.string().size();
         folder = folder.parent_path()) {
      const auto value = number(
          read_line(folder / (is_v1 ? "memory.limit_in_bytes" : "memory.max")));
      if (value && *value < (uint64_t{1} << 62)) {
        limit = std::min(*value, limit.value_or(*value));
      }
    }
  }
  return limit;
}

Check memory() {
  const uint64_t all =
      number(value_of("/proc/meminfo", "MemTotal")).value_or(0) * 1024;
  const uint64_t available =
      number(value_of("/proc/meminfo", "MemAvailable")).value_or(0) * 1024;
  const auto limit = cgroup_limit();
  Check check{
      "memory",
      fmt::format(
          "{} MiB, {} MiB of it available; cgroup limit {}; allocator {}",
          all / kMebibyte,
          available / kMebibyte,
          limit ? fmt::format("{} MiB", *limit / kMebibyte) : "none",
          base::memory_allocator()),
      ""};
  if (std::min(available, limit.value_or(available)) < kMinMemory) {
    check.problem = fmt::format(
        "less than {} MiB: a rank needs about 300 MiB before its model. Free "
        "memory, or raise the limit.",
        kMinMemory / kMebibyte);
  }
  return check;
}

/// Returns the reason why shared memory cannot be allocated. Empty if it can.
std::string try_shared_memory() {
  const std::string name = fmt::format("/weft_doctor_{}", getpid());
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (fd < 0) {
    return std::strerror(errno);
  }
  shm_unlink(name.c_str());
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(kMebibyte));
  close(fd);
  return error == 0 ? "" : std::strerror(error);
}

Check shared_memory() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0) {
    return {
        "shared memory",
        "none",
        "/dev/shm is not there: ranks of one host talk through gloo, more "
        "slowly. Mount a tmpfs."};
  }
  const uint64_t size = uint64_t{status.f_blocks} * status.f_frsize;
  const uint64_t room = uint64_t{status.f_bavail} * status.f_frsize;
  Check check{
      "shared memory",
      fmt::format(
          "/dev/shm of {} MiB, {} MiB free",
          size / kMebibyte,
          room / kMebibyte),
      ""};
  const std::string error = try_shared_memory();
  if (!error.empty()) {
    check.problem = "cannot allocate 1 MiB: " + error;
  } else if (room < kMinSharedMemory) {
    check.problem = fmt::format(
        "less than {} MiB are free. For a container use docker run "
        "--shm-size=1g.",
        kMinSharedMemory / kMebibyte);
  }
  return check;
}

/// Returns the reason why this host cannot connect to itself as ranks do. Empty
/// if it can.
std::string try_loopback() {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool works =
      server >= 0 && client >= 0 && bind(server, generic, size) == 0 &&
      listen(server, 1) == 0 && getsockname(server, generic, &size) == 0 &&
      connect(client, generic, size) == 0;
  const std::string error = works ? "" : std::strerror(errno);
  close(server);
  close(client);
  return error;
}

Check loopback() {
  const std::string error = try_loopback();
  return {
      "loopback",
      error.empty() ? "127.0.0.1 answers (gloo)" : "does not answer",
      error.empty() ? "" : "127.0.0.1: " + error + ". Run ip link set lo up."};
}

Check host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name, nullptr, &hints, &found);
  std::string addresses;
  for (const auto* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST] = "";
    getnameinfo(
        at->ai_addr,
        at->ai_addrlen,
        text,
        sizeof(text),
        nullptr,
        0,
        NI_NUMERICHOST);
    addresses += (addresses.empty() ? "" : ", ") + std::string(text);
  }
  if (found != nullptr) {
    freeaddrinfo(found);
  }
  // A job on one host needs no host name, so this is not a problem.
  return {
      "host name",
      error == 0
          ? fmt::format("{} is {}", name, addresses)
          : fmt::format(
                "{} has no address ({}); over several hosts give --local-addr",
                name,
                gai_strerror(error)),
      ""};
}

std::string limit_text(int resource, uint64_t unit, const char* unit_name) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY
             ? "unlimited"
             : fmt::format("{}{}", limit.rlim_cur / unit, unit_name);
}

Check limits() {
  Check check{
      "limits",
      fmt::format(
          "open files {}, processes {}, address space {}, locked memory {}, "
          "core files {}",
          limit_text(RLIMIT_NOFILE, 1, ""),
          limit_text(RLIMIT_NPROC, 1, ""),
          limit_text(RLIMIT_AS, kMebibyte, " MiB"),
          limit_text(RLIMIT_MEMLOCK, 1024, " KiB"),
          limit_text(RLIMIT_CORE, 1024, " KiB")),
      ""};
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < kMinFiles) {
    check.problem = fmt::format(
        "{} open files are too few for connections and data. Run ulimit -n "
        "4096.",
        files.rlim_cur);
  }
  return check;
}

Check devices() {
  if (!fs::exists("/dev/nvidia0")) {
    return {"devices", "the CPU; no NVIDIA device (no /dev/nvidia0)", ""};
  }
  const std::string driver =
      value_of("/proc/driver/nvidia/version", "NVRM version");
  try {
    mesh::open_device("cuda", 0, 1);
    return {"devices", "the CPU, CUDA; driver " + driver, ""};
  } catch (const c10::Error& error) {
    return {
        "devices", "the CPU; driver " + driver, error.what_without_backtrace()};
  }
}

} // namespace

std::vector<Check> check_host() {
  return {
      versions(),
      devices(),
      cpu(),
      products(),
      memory(),
      shared_memory(),
      loopback(),
      limits(),
      host_name()};
}

} // namespace weft::cli
