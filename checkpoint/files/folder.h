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

/// An open file; closes when it goes.
class File {
 public:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  /// Bytes.
  int64_t size() const;
  /// Reads all of `out` from `offset`; goes on after short reads and EINTR.
  /// Returns the bytes that the file still had, less than asked for at its end.
  int64_t read_at(int64_t offset, std::span<std::byte> out) const;
  /// Writes the parts one after the other from `offset` on; goes on after
  /// short writes and EINTR.
  void write_at(
      int64_t offset,
      std::span<const std::span<const std::byte>> parts) const;
  /// Takes room on the disk for `bytes`, where the file system can: a full disk
  /// is found before the first write. Not posix_fallocate: that writes zeros
  /// where it cannot.
  void reserve(int64_t bytes) const;
  /// Content and size are on the disk when it returns. A failure is final: the
  /// kernel may have dropped what it could not write.
  void sync() const;
  /// Closes and reports what the file system only says now.
  void close();

 private:
  int fd_;
  std::filesystem::path path_;
};

struct FolderEntry {
  std::string name;
  /// Neither of the two: a symbolic link, a FIFO, a device.
  bool is_file = false;
  bool is_folder = false;
  int64_t bytes = 0;
};

/// An open directory. What is opened through it lies directly inside it: names
/// with a separator, ".." or a symbolic link are refused, and what is not a
/// regular file, whatever the folder's owner does meanwhile. Hard links cannot
/// be told from files and are read.
/// Throws: std::system_error with path and errno, unless it says otherwise.
class Folder {
 public:
  /// Throws: mesh::UsageError if there is no such folder or it may not be read.
  static Folder open(const std::filesystem::path& path);
  /// Makes a folder that is not there yet (EEXIST otherwise) and opens it.
  static Folder create(const std::filesystem::path& path);

  Folder(Folder&&) noexcept = default;
  Folder& operator=(Folder&&) noexcept = default;

  const std::filesystem::path& path() const { return directory_.path(); }
  int fd() const { return directory_.fd(); }

  /// Throws: CheckpointError if it is missing, not a regular file, not
  /// readable, or its name leads elsewhere.
  File open_file(const std::string& name) const;
  /// For writing; the file must not exist.
  File create_file(const std::string& name) const;
  /// Sorted by name; without "." and "..".
  std::vector<FolderEntry> list() const;
  /// Whether there is anything of that name (a dangling link is).
  bool has(const std::string& name) const;
  /// Names in this folder. Never replaces: EEXIST.
  void rename(const std::string& from, const std::string& to) const;
  /// The same for two files, replacing `to`.
  void rename_over(const std::string& from, const std::string& to) const;
  /// The names in this folder are on the disk when it returns.
  void sync() const;

 private:
  explicit Folder(File directory) : directory_(std::move(directory)) {}
  File directory_;
};

/// Makes `path` and the folders above it that are missing; their names are on
/// the disk when it returns.
/// Throws: std::system_error with path and errno.
void make_folders(const std::filesystem::path& path);

/// Whether `name` can be the name of a file of a checkpoint: no separator, not
/// "." or "..", no control character, UTF-8, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

} // namespace weft::checkpoint
