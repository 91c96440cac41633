#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::recipes {

/// A file as it was when the run started.
struct DataFile {
  std::string path;
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
};

/// The files that `paths` name, in the order of `paths` and below each sorted
/// by the bytes of their paths; a file that is met twice is taken once, an
/// empty one not at all. A path is a file, a folder (regular files at any
/// depth; hidden names and linked folders are left out) or a glob, in which a
/// component ** stands for any folders. Opens no file.
/// Throws: mesh::UsageError "<where>[i]: ..." for a path that names nothing.
std::vector<DataFile> find_files(
    const std::vector<std::string>& paths,
    const std::string& where);

/// Of all names (without their folders) and sizes: tells whether a later run
/// has the same files.
uint64_t fingerprint(std::span<const DataFile> files);

} // namespace weft::recipes
