#include "hf/new_folder.h"

#include <random>
#include <system_error>

#include <fmt/format.h>

#include "mesh/error/error.h"

namespace weft::hf {

namespace fs = std::filesystem;

void check_is_free(const fs::path& path) {
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() != fs::file_type::not_found) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} already exists and is not overwritten. Remove it, or give another "
        "path",
        path.string()));
  }
}

NewFolder::NewFolder(const fs::path& path) : path_(path) {
  const auto above =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
  checkpoint::make_folders(above);
  parent_.emplace(checkpoint::Folder::open(above));
  name_ = fmt::format(
      ".{}.tmp-{:08x}", path.filename().string(), std::random_device()());
  folder_.emplace(checkpoint::Folder::create(above / name_));
}

NewFolder::~NewFolder() {
  if (!done_) {
    std::error_code ignored;
    fs::remove_all(folder_->path(), ignored);
  }
}

void NewFolder::commit() {
  folder_->sync();
  parent_->rename(name_, path_.filename().string());
  done_ = true;
  parent_->sync();
}

// Commits with a hard link, which fails if the target exists, like a rename
// without replacement.
void NewFolder::commit_file(const std::string& name) {
  const auto from = folder_->path() / name;
  std::error_code error;
  fs::create_hard_link(from, path_, error);
  if (error) { // no support for hard links
    check_is_free(path_);
    fs::rename(from, path_);
  }
  parent_->sync();
}

} // namespace weft::hf
