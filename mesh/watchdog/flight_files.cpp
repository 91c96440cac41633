#include "mesh/watchdog/flight_files.h"

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/bootstrap/env.h"
#include "mesh/watchdog/plain_pickle.h"

namespace weft::mesh {
namespace {

[[noreturn]] void throw_about(const std::string& path, const char* what) {
  throw std::system_error(
      errno, std::generic_category(), "[flight_record] " + path + ": " + what);
}

/// Writes the file at `path` completely or not at all. `part` is a temporary
/// name in the same folder that no analyzer reads.
void write_whole_file(
    const std::string& path,
    const std::string& part,
    std::string_view bytes) {
  ::unlink(part.c_str());
  const int fd = ::open(
      part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    throw_about(part, "cannot be made");
  }
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size > 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno != EINTR) {
      break;
    }
  }
  const bool is_closed = ::close(fd) == 0;
  if (!bytes.empty() || !is_closed ||
      ::rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(part.c_str());
    errno = error;
    throw_about(path, "cannot be written");
  }
}

FlightFiles files_of(const std::filesystem::path& prefix, int64_t rank) {
  const std::string number = std::to_string(rank);
  std::string name = prefix.filename();
  const auto folder = prefix.parent_path();
  FlightFiles files{.trace = folder / (name + number), .json = ""};
  const bool has_separator =
      std::string_view("_-.").find(name.back()) != std::string_view::npos;
  name = has_separator ? name.substr(0, name.size() - 1) : "";
  files.json = folder / (name + number + ".json");
  return files;
}

} // namespace

FlightFiles write_flight_record(
    const std::vector<GroupRecord>& groups,
    int64_t rank,
    const std::string& prefix) {
  std::filesystem::path path = std::filesystem::absolute(prefix);
  if (!path.has_filename()) {
    path /= "rank_";
  }
  std::filesystem::create_directories(path.parent_path());
  auto files = files_of(path, rank);
  const std::string part =
      path.parent_path() /
      ("." + std::to_string(getpid()) + "-" + std::to_string(rank) + ".part");
  const std::string text = flight_record(groups, rank);
  write_whole_file(files.json, part, text);
  write_whole_file(
      files.trace,
      part,
      plain_pickle(base::parse_json<nlohmann::ordered_json>(text)));
  return files;
}

std::string flight_record_prefix(const std::string& configured) {
  std::string prefix = configured;
  for (const char* name :
       {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    if (prefix.empty()) {
      prefix = env::get(name).value_or("");
    }
  }
  return prefix;
}

} // namespace weft::mesh
