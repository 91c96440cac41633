#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::checkpoint {

/// An open file, closed on destruction.
class File {
 public:
  /// Takes over the descriptor. `path` is for messages.
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  /// Takes over the descriptor of `other`, which then has none.
  File(File&& other) noexcept;
  /// Swaps the files.
  File& operator=(File&& other) noexcept;
  ~File();

  /// The file descriptor. -1 after close(), or if a file was constructed from
  /// this one.
  int fd() const { return fd_; }
  /// The path with which the file was opened.
  const std::filesystem::path& path() const { return path_; }
  /// Returns the file's size in bytes.
  int64_t size() const;
  /// Reads from `offset` until `out` is full or the file ends, with retries
  /// after short reads and EINTR. Returns the number of bytes read, which is
  /// less than the size of `out` at the end of the file.
  int64_t read_at(int64_t offset, std::span<std::byte> out) const;
  /// Writes the parts one after another from `offset`, with retries after short
  /// writes and EINTR.
  void write_at(
      int64_t offset,
      std::span<const std::span<const std::byte>> parts) const;
  /// Reserves `bytes` on the disk if the file system supports it, so that a
  /// full disk is detected before the first write. Does not use
  /// posix_fallocate, which writes zeros if the file system does not support
  /// it.
  void reserve(int64_t bytes) const;
  /// Blocks until content and size are on the disk. A failure is final, because
  /// the kernel may have dropped the data that it could not write.
  void sync() const;
  /// Closes the file and reports errors that the file system reports only at
  /// this point.
  void close();

 private:
  int fd_;
  std::filesystem::path path_;
};

/// An entry of a folder.
struct FolderEntry {
  /// The name without the folder.
  std::string name;
  /// True for a regular file. Symbolic links, FIFOs and devices are neither
  /// files nor folders.
  bool is_file = false;
  /// True for a folder.
  bool is_folder = false;
  /// The size of a regular file in bytes.
  int64_t bytes = 0;
};

/// An open directory. A file opened through it is a regular file directly
/// inside it: names with a separator, "..", symbolic links and other types of
/// files are refused, even if the owner of the folder changes it meanwhile.
/// Hard links cannot be told from files and are read.
/// Throws: std::system_error with path and errno, unless a method documents
/// other errors.
class Folder {
 public:
  /// Opens an existing folder.
  /// Throws: mesh::UsageError if the folder does not exist or cannot be read.
  static Folder open(const std::filesystem::path& path);
  /// Creates a folder and opens it. Fails with EEXIST if it exists.
  static Folder create(const std::filesystem::path& path);

  Folder(Folder&&) noexcept = default;
  Folder& operator=(Folder&&) noexcept = default;

  /// The path with which the folder was opened.
  const std::filesystem::path& path() const { return directory_.path(); }
  /// The descriptor of the folder.
  int fd() const { return directory_.fd(); }

  /// Opens a file for reading.
  /// Throws: CheckpointError if the file is missing, not a regular file or not
  /// readable, or if its name leads out of the folder.
  File open_file(const std::string& name) const;
  /// Creates a file for writing. The file must not exist.
  File create_file(const std::string& name) const;
  /// Returns the entries, sorted by name, without "." and "..".
  std::vector<FolderEntry> list() const;
  /// Returns true if there is an entry of that name. A dangling symbolic link
  /// counts.
  bool has(const std::string& name) const;
  /// Renames an entry of this folder. Never replaces one: fails with EEXIST if
  /// `to` exists.
  void rename(const std::string& from, const std::string& to) const;
  /// Renames a file of this folder, and replaces `to` if it exists.
  void rename_over(const std::string& from, const std::string& to) const;
  /// Blocks until the names in this folder are on the disk.
  void sync() const;

 private:
  explicit Folder(File directory) : directory_(std::move(directory)) {}
  File directory_;
};

/// Creates `path` and its missing parent folders, and blocks until their names
/// are on the disk.
/// Throws: std::system_error with path and errno.
void make_folders(const std::filesystem::path& path);

/// Returns true if `name` is valid for a file of a checkpoint: no separator,
/// not "." or "..", no control character, UTF-8, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

} // namespace weft::checkpoint
