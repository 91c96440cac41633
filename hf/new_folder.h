#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/files/folder.h"

namespace weft::hf {

/// Throws: mesh::UsageError if `path` exists.
void check_is_free(const std::filesystem::path& path);

/// A temporary folder next to its final path, removed with its content unless
/// committed.
/// Throws: std::system_error with path and errno.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const checkpoint::Folder& folder() const { return *folder_; }

  /// Renames the folder to `path`. It is on disk when this function returns.
  void commit();
  /// Like commit(), for one file of the folder; the others are removed.
  void commit_file(const std::string& name);

 private:
  std::filesystem::path path_;
  std::string name_;
  std::optional<checkpoint::Folder> parent_;
  std::optional<checkpoint::Folder> folder_;
  bool done_ = false;
};

} // namespace weft::hf
