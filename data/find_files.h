#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::data {

/// A file at the start of the run.
struct DataFile {
  std::string path;
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
};

/// Returns the files of `paths`, in the order of `paths` and within each sorted
/// by the bytes of their paths. Duplicates and empty files are skipped. A path
/// is a file, a folder (regular files at any depth, without hidden names and
/// linked folders) or a glob, in which the component ** matches any folders.
/// Opens no file.
/// Throws: mesh::UsageError "<where>[i]: ..." for a path that matches nothing.
std::vector<DataFile> find_files(
    const std::vector<std::string>& paths,
    const std::string& where);

/// Returns a fingerprint of all names (without folders) and sizes, which
/// detects changes in a later run.
uint64_t fingerprint(std::span<const DataFile> files);

} // namespace weft::data
