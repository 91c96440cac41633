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

/// A box of a tensor, as one run of bytes of one file, row-major.
struct Chunk {
  std::string file;
  /// In the whole tensor; as many as the tensor has dims, no size of 0.
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  /// Bytes of the file, the header counted.
  int64_t begin = 0;
  int64_t end = 0;
  /// XXH3-64 of each `piece_bytes` from `begin` on; the last piece is shorter.
  std::vector<uint64_t> piece_hashes;
  /// SHA-256 of the same pieces, or none.
  std::vector<Sha256> piece_sha256 = {};
};

struct TensorRecord {
  at::ScalarType dtype = at::ScalarType::Float;
  /// Global.
  std::vector<int64_t> shape;
  /// How it lay when it was saved, for people.
  std::string placements;
  std::string mesh;
  /// Tile the tensor exactly; none if it has no elements.
  std::vector<Chunk> chunks;
};

struct FileRecord {
  int64_t bytes = 0;
  /// Length prefix, JSON and padding.
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
  std::optional<Sha256> header_sha256 = std::nullopt;
};

/// What a checkpoint holds and where: the content of manifest.json. A step
/// folder is a checkpoint because, and only if, it has a sound one.
struct Manifest {
  int64_t step = 0;
  int64_t piece_bytes = kDefaultPieceBytes;
  std::string weft_version;
  std::string torch_version;
  /// When: ISO 8601, UTC. For people.
  std::string created;
  std::map<std::string, FileRecord> files;
  std::map<std::string, TensorRecord> tensors;
  /// JSON objects, as text, that belong to the trainer: `state` is compared by
  /// compare(), `layout` is not.
  std::string state = "{}";
  std::string layout = "{}";
  /// Made from safetensors files without a manifest: nothing has a hash.
  bool has_no_hashes = false;
};

/// A size of pieces for `total_bytes` of tensors: kDefaultPieceBytes, or twice
/// that again and again until the hashes of all pieces take no more than 8 MiB
/// of the manifest, as far as limits::kMaxPieceBytes.
int64_t choose_piece_bytes(int64_t total_bytes, bool sha256 = false);

/// The text of manifest.json, its own hash included, and with a key its HMAC.
/// Throws: mesh::UsageError if a reader would refuse it: chunks that leave a
/// hole or overlap, names, sizes, `state` that is no JSON object, a key where a
/// piece has no SHA-256. So a folder that cannot be loaded is never committed.
/// A foreign manifest is refused, too.
std::string to_json(const Manifest& manifest, std::string_view hmac_key = {});

/// With a key the text must have the right HMAC, and a SHA-256 of every header
/// and piece: then whoever does not know the key cannot have changed any of it.
/// Without one an HMAC is not looked at.
/// Throws: CheckpointError that names `source` and the key or offset, if the
/// text is not what to_json() wrote, bit for bit, or breaks a rule of the
/// format (chunks that leave a hole or overlap, bytes of a file that belong to
/// no chunk or to two, limits).
Manifest parse_manifest(
    std::string_view text,
    const std::string& source,
    std::string_view hmac_key = {});

/// `created`, `weft_version` and `torch_version` of this process, now.
void stamp(Manifest& manifest);

} // namespace weft::checkpoint
