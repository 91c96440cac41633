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

/// A chunk with its tensor.
struct PlacedChunk {
  const std::string* key;
  const TensorRecord* tensor;
  const Chunk* chunk;
};

/// Returns the chunks of each file.
/// Lifetime: the result is valid as long as `manifest`.
std::map<std::string_view, std::vector<PlacedChunk>> chunks_by_file(
    const Manifest& manifest);

/// An open tensor file of a checkpoint, with size and header verified against
/// the manifest. Hashes are not verified if the manifest has none.
class CheckedFile {
 public:
  /// Opens the file and verifies its size and header.
  /// Throws: CheckpointError naming folder, file and the difference if they do
  /// not match.
  CheckedFile(
      const Folder& folder,
      const Manifest& manifest,
      const std::string& name,
      const std::vector<PlacedChunk>& chunks);

  /// Reads into `out` the piece of `chunk` that begins at byte `begin` of the
  /// chunk. `out` has the size of the piece. Returns nullopt if the piece is
  /// valid, and otherwise an error such as "byte 4096: ...".
  std::optional<std::string>
  read_piece(const Chunk& chunk, int64_t begin, std::span<std::byte> out) const;

  /// The bytes of the header, which the constructor has read.
  int64_t header_bytes() const { return header_bytes_; }

 private:
  File file_;
  int64_t piece_bytes_;
  bool has_no_hashes_;
  int64_t header_bytes_;
};

} // namespace weft::checkpoint
