#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// A chunk and whose it is.
struct PlacedChunk {
  const std::string* key;
  const TensorRecord* tensor;
  const Chunk* chunk;
};

/// The chunks of each file. Lifetime: the manifest's.
std::map<std::string_view, std::vector<PlacedChunk>> chunks_by_file(
    const Manifest& manifest);

/// A tensor file of a checkpoint, opened, whose size and header are what the
/// manifest says. Without hashes, if the manifest is foreign.
class CheckedFile {
 public:
  /// Throws: CheckpointError naming folder and file, and where they differ.
  CheckedFile(
      const Folder& folder,
      const Manifest& manifest,
      const std::string& name,
      const std::vector<PlacedChunk>& chunks);

  /// Reads the piece of `chunk` that begins at `begin` bytes from its first to
  /// `out`, whose size is the piece's. Returns what is wrong with it, as "byte
  /// 4096: ...".
  std::optional<std::string>
  read_piece(const Chunk& chunk, int64_t begin, std::span<std::byte> out) const;

  /// Of the header: what the constructor has read.
  int64_t header_bytes() const { return header_bytes_; }

 private:
  File file_;
  int64_t piece_bytes_;
  bool has_no_hashes_;
  int64_t header_bytes_;
};

} // namespace weft::checkpoint
