#include "launcher/output/log_dir.h"

#include <algorithm>
#include <cstdlib>

#include <sys/stat.h>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnerOnly = 0700;

void make_folder(const fs::path& folder) {
  if (mkdir(folder.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    throw_errno("log folder " + folder.string());
  }
}

void make_folders(const fs::path& folder) {
  fs::path made;
  for (const auto& part : folder) {
    made /= part;
    std::error_code error;
    if (!fs::is_directory(made, error)) {
      make_folder(made);
    }
  }
}

fs::path make_unique_folder(const std::string& prefix) {
  std::string name = prefix + "XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    throw_errno("log folder " + name);
  }
  return name;
}

fs::path temporary_root() {
  const char* folder = std::getenv("TMPDIR");
  return fs::absolute(folder != nullptr && *folder != '\0' ? folder : "/tmp");
}

} // namespace

LogDir::LogDir(const Options& options)
    : attempts_(static_cast<size_t>(options.worker_count)) {
  fs::path parent;
  if (options.log_dir.empty()) {
    parent = make_unique_folder(temporary_root() / "weftrun_");
    if (!options.redirects.any() && !options.tee.any()) {
      temporary_ = parent;
    }
  } else {
    parent = fs::absolute(options.log_dir);
    std::error_code error;
    if (fs::exists(parent, error) && !fs::is_directory(parent, error)) {
      throw LaunchError(fmt::format(
          "--log-dir {} is not a folder. Give a folder, or leave the flag out "
          "if neither --redirects nor --tee is used.",
          options.log_dir));
    }
    make_folders(parent);
  }
  std::string run_id = options.run_id;
  std::ranges::replace(run_id, '/', '_');
  root_ = make_unique_folder(parent / (run_id + "_"));
}

void LogDir::begin_attempt(int number, LocalRanks workers) {
  for (int rank = workers.first; rank < workers.end(); ++rank) {
    attempts_[static_cast<size_t>(rank)] = number;
    make_folder(attempt(rank));
    make_folder(attempt(rank) / std::to_string(rank));
  }
}

LogDir::~LogDir() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

fs::path LogDir::file(int local_rank, const std::string& name) const {
  return attempt(local_rank) / std::to_string(local_rank) / name;
}

} // namespace weft::launcher
