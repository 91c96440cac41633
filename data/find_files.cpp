#include "data/find_files.h"

#include <fnmatch.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "mesh/error/error.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return status;
}

bool is_hidden(const fs::path& path) {
  return path.filename().native().starts_with('.');
}

std::vector<std::string> sorted(std::vector<std::string> paths) {
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the paths of all files below `folder`, except hidden ones. Each path
// begins with `folder`.
std::vector<std::string> walk(const std::string& folder) {
  std::vector<std::string> paths;
  fs::recursive_directory_iterator entry(folder);
  for (; entry != fs::recursive_directory_iterator(); ++entry) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_symlink() || !entry->is_directory()) {
      paths.push_back(entry->path().native());
    }
  }
  return sorted(std::move(paths));
}

std::vector<std::string> simple_glob(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return sorted(std::move(paths));
}

// Returns true if `pattern` matches the last components of `path`, for any
// number of them.
bool matches_tail(const std::string& pattern, std::string_view path) {
  size_t begin = 0;
  while (begin != std::string_view::npos) {
    const std::string tail(path.substr(begin));
    if (::fnmatch(pattern.c_str(), tail.c_str(), FNM_PATHNAME | FNM_PERIOD) ==
        0) {
      return true;
    }
    const size_t slash = path.find('/', begin);
    begin = slash == std::string_view::npos ? slash : slash + 1;
  }
  return false;
}

// Returns the paths that match a pattern. The component ** matches any number
// of folders.
std::vector<std::string> expand(const std::string& pattern) {
  const size_t stars =
      pattern.starts_with("**/") ? 0 : pattern.find("/**/") + 1;
  if (stars == 0 && !pattern.starts_with("**/")) {
    return simple_glob(pattern);
  }
  const std::string head = stars == 0 ? "./" : pattern.substr(0, stars);
  const std::string tail = pattern.substr(stars + 3);
  std::vector<std::string> paths;
  for (const std::string& folder : simple_glob(head)) {
    for (std::string& path : walk(folder)) {
      if (matches_tail(tail, std::string_view(path).substr(folder.size()))) {
        paths.push_back(std::move(path));
      }
    }
  }
  return paths;
}

// FNV-1a. Source: Fowler, Noll and Vo, draft-eastlake-fnv.
uint64_t add_bytes(uint64_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  }
  return hash;
}

class Finder {
 public:
  explicit Finder(std::string where) : where_(std::move(where)) {}

  void add(size_t index, const std::string& path) {
    const std::string place = fmt::format("{}[{}]", where_, index);
    const bool is_pattern = path.find_first_of("*?[") != std::string::npos;
    const bool is_there = status_of(path).has_value();
    if (!is_there && !is_pattern) {
      fail(place, path, std::strerror(errno));
    }
    const size_t before = seen_.size() + repeated_;
    try {
      const auto matches =
          is_there ? std::vector<std::string>{path} : expand(path);
      for (const std::string& match : matches) {
        add_match(place, match);
      }
    } catch (const fs::filesystem_error& error) {
      fail(place, error.path1().native(), error.code().message());
    }
    if (seen_.size() + repeated_ == before) {
      fail(place, path, is_there ? "no files below" : "matches no file");
    }
  }

  std::vector<DataFile> take() { return std::move(files_); }

 private:
  [[noreturn]] static void fail(
      const std::string& place,
      const std::string& path,
      std::string_view reason) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("{}: \"{}\": {}", place, path, reason));
  }

  void add_match(const std::string& place, const std::string& path) {
    const auto status = status_of(path);
    if (!status) {
      fail(place, path, std::strerror(errno));
    }
    if (!S_ISDIR(status->st_mode)) {
      if (!S_ISREG(status->st_mode)) {
        fail(place, path, "is neither a file nor a folder");
      }
      add_file(path, *status);
      return;
    }
    for (const std::string& below : walk(path)) {
      const auto below_status = status_of(below);
      if (below_status && S_ISREG(below_status->st_mode)) {
        add_file(below, *below_status);
      }
    }
  }

  void add_file(const std::string& path, const struct stat& status) {
    if (!seen_.emplace(status.st_dev, status.st_ino).second) {
      ++repeated_;
    } else if (status.st_size > 0) {
      files_.push_back(
          {path,
           status.st_size,
           status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
    }
  }

  std::string where_;
  std::vector<DataFile> files_;
  std::set<std::pair<dev_t, ino_t>> seen_;
  size_t repeated_ = 0;
};

} // namespace

std::vector<DataFile> find_files(
    const std::vector<std::string>& paths,
    const std::string& where) {
  Finder finder(where);
  for (size_t i = 0; i < paths.size(); ++i) {
    finder.add(i, paths[i]);
  }
  return finder.take();
}

uint64_t fingerprint(std::span<const DataFile> files) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const DataFile& file : files) {
    const std::string name = fs::path(file.path).filename();
    hash = add_bytes(hash, name.c_str(), name.size() + 1);
    for (int shift = 0; shift < 64; shift += 8) {
      const auto byte = static_cast<unsigned char>(
          static_cast<uint64_t>(file.size_bytes) >> shift);
      hash = add_bytes(hash, &byte, 1);
    }
  }
  return hash;
}

} // namespace weft::data
