#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/files/folder.h"

namespace weft::recipes::hub {

/// Throws: mesh::UsageError if there is anything at `path`.
void check_is_free(const std::filesystem::path& path);

/// A new folder beside the one that it becomes, with what it holds, or goes.
/// Throws: std::system_error with path and errno.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const checkpoint::Folder& folder() const { return *folder_; }

  /// It is at `path`, and on the disk, when this returns.
  void commit();
  /// The same for one file of it; the rest goes.
  void commit_file(const std::string& name);

 private:
  std::filesystem::path path_;
  std::string name_;
  std::optional<checkpoint::Folder> parent_;
  std::optional<checkpoint::Folder> folder_;
  bool done_ = false;
};

} // namespace weft::recipes::hub
