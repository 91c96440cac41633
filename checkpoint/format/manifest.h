#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "checkpoint/format/digest.h"

namespace weft::checkpoint {

constexpr const char* kManifestName = "manifest.json";
constexpr int64_t kDefaultPieceBytes = 1 << 20;

/// A box of a tensor, stored row-major in one range of bytes of one file.
struct Chunk {
  std::string file;
  /// The position in the full tensor, one number per tensor dim. No size is 0.
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  /// The range of bytes in the file, counted from the start of its header.
  int64_t begin = 0;
  int64_t end = 0;
  /// The XXH3-64 hash of each `piece_bytes` from `begin` on. The last piece is
  /// shorter.
  std::vector<uint64_t> piece_hashes;
  /// The SHA-256 hashes of the same pieces. Empty if there are none.
  std::vector<Sha256> piece_sha256 = {};
};

struct TensorRecord {
  at::ScalarType dtype = at::ScalarType::Float;
  /// The global shape.
  std::vector<int64_t> shape;
  /// The placements and mesh of the saved tensor, as text. load() ignores them;
  /// reshard() reads them.
  std::string placements;
  std::string mesh;
  /// The chunks, which tile the tensor exactly. Empty if it has no elements.
  std::vector<Chunk> chunks;
};

struct FileRecord {
  int64_t bytes = 0;
  /// The bytes of the length prefix, the JSON and the padding.
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
  std::optional<Sha256> header_sha256 = std::nullopt;
};

/// The contents of a checkpoint and their positions: the content of
/// manifest.json. A folder is a checkpoint if and only if it has a valid
/// manifest.
struct Manifest {
  int64_t step = 0;
  int64_t piece_bytes = kDefaultPieceBytes;
  std::string weft_version;
  std::string torch_version;
  /// The time of the save as ISO 8601 in UTC. Informational.
  std::string created;
  std::map<std::string, FileRecord> files;
  std::map<std::string, TensorRecord> tensors;
  /// JSON objects, as text, that belong to the trainer. compare() compares
  /// `state` and ignores `layout`.
  std::string state = "{}";
  std::string layout = "{}";
  /// True if the manifest was made from safetensors files without a manifest,
  /// so that nothing has a hash.
  bool has_no_hashes = false;
};

/// Returns the piece size for `total_bytes` of tensors: kDefaultPieceBytes,
/// doubled until the hashes of all pieces take at most 8 MiB of the manifest or
/// limits::kMaxPieceBytes is reached.
int64_t choose_piece_bytes(int64_t total_bytes, bool sha256 = false);

/// Returns the text of manifest.json, including its own hash and, with a key,
/// its HMAC.
/// Throws: mesh::UsageError if a reader would reject the manifest: chunks that
/// leave a gap or overlap, invalid names or sizes, a `state` that is not a JSON
/// object, or a key while a piece has no SHA-256. A folder that cannot be
/// loaded is therefore never committed. Also throws if the manifest has no
/// hashes.
std::string to_json(const Manifest& manifest, std::string_view hmac_key = {});

/// Parses and validates manifest.json. With a key, the text must have the right
/// HMAC, and a SHA-256 of every header and piece, so that a process without the
/// key cannot have changed any of it. Without a key an HMAC is ignored.
/// Throws: CheckpointError naming `source` and the key or offset if the text is
/// not bitwise what to_json() wrote, or violates a rule of the format (chunks
/// that leave a gap or overlap, bytes of a file that belong to no chunk or to
/// two, limits).
Manifest parse_manifest(
    std::string_view text,
    const std::string& source,
    std::string_view hmac_key = {});

/// Sets `created`, `weft_version` and `torch_version` to the current time and
/// this process's versions.
void stamp(Manifest& manifest);

} // namespace weft::checkpoint
