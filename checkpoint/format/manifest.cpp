#include "checkpoint/format/manifest.h"

#include <chrono>
#include <ctime>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "checkpoint/files/error.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/json_scan.h"
#include "checkpoint/format/manifest_rules.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using Text = fmt::memory_buffer;

template <class... Args>
void add(Text& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

[[noreturn]] void refuse(const std::string& what) {
  mesh::throw_error<mesh::UsageError>("[checkpoint] cannot save: " + what);
}

// Adds the caller's JSON text unchanged, so that numbers keep their digits.
void add_object(Text& out, const char* name, const std::string& text) {
  // In the manifest, the text is nested one level deeper.
  try {
    check_json_object(text, name, limits::kManifestDepth - 1);
  } catch (const CheckpointError& error) {
    refuse(error.what_without_backtrace());
  }
  add(out, "\"{}\": {},\n", name, text);
}

void add_chunk(Text& out, const Chunk& chunk) {
  add(out,
      R"({{"file": {}, "offset": {}, "shape": {}, "bytes": [{}, {}], "xxh3": [)",
      json_string(chunk.file),
      to_text(chunk.offset),
      to_text(chunk.shape),
      chunk.begin,
      chunk.end);
  const char* between = "";
  for (const auto hash : chunk.piece_hashes) {
    add(out, "{}\"{:016x}\"", between, hash);
    between = ", ";
  }
  if (!chunk.piece_sha256.empty()) {
    add(out, "], \"sha256\": [");
    between = "";
    for (const auto& digest : chunk.piece_sha256) {
      add(out, "{}\"{}\"", between, to_hex(digest));
      between = ", ";
    }
  }
  add(out, "]}}");
}

void add_file(Text& out, const std::string& name, const FileRecord& file) {
  add(out,
      R"({}: {{"bytes": {}, "header_bytes": {}, "header_xxh3": "{:016x}")",
      json_string(name),
      file.bytes,
      file.header_bytes,
      file.header_hash);
  if (file.header_sha256) {
    add(out, R"(, "header_sha256": "{}")", to_hex(*file.header_sha256));
  }
  add(out, "}}");
}

void add_tensor(
    Text& out,
    const std::string& name,
    const TensorRecord& tensor) {
  add(out,
      R"({}: {{"dtype": "{}", "shape": {}, "placements": {}, "mesh": {}, )",
      json_string(name),
      format_name(tensor.dtype),
      to_text(tensor.shape),
      json_string(tensor.placements),
      json_string(tensor.mesh));
  add(out, "\"chunks\": [");
  const char* between = "";
  for (const auto& chunk : tensor.chunks) {
    add(out, "{}", between);
    add_chunk(out, chunk);
    between = ", ";
  }
  add(out, "]}}");
}

template <class Map, class AddMember>
void add_members(
    Text& out,
    const char* name,
    const Map& map,
    const AddMember& add_member) {
  add(out, "\"{}\": {{", name);
  const char* between = "\n";
  for (const auto& [key, value] : map) {
    add(out, "{}", between);
    add_member(key, value);
    between = ",\n";
  }
  add(out, "\n}},\n");
}

} // namespace

int64_t choose_piece_bytes(int64_t total_bytes, bool sha256) {
  constexpr int64_t kMaxOfHashes = 8 << 20;
  constexpr int64_t kQuotes = 4; // two quotes, a comma and a space
  const auto digits = static_cast<int64_t>(
      kHexDigits + kQuotes + (sha256 ? kHmacDigits.size() + kQuotes : 0));
  auto piece = kDefaultPieceBytes;
  while (piece < limits::kMaxPieceBytes &&
         total_bytes / piece >= kMaxOfHashes / digits) {
    piece *= 2;
  }
  return piece;
}

std::string to_json(const Manifest& manifest, std::string_view hmac_key) {
  if (manifest.has_no_hashes) {
    refuse(
        "the manifest describes files without hashes. Load the tensors and "
        "save them as a new checkpoint.");
  }
  if (const auto fault = find_violation(manifest)) {
    refuse(*fault);
  }
  if (!hmac_key.empty()) {
    if (const auto fault = find_missing_sha256(manifest)) {
      refuse(*fault + ", which the HMAC requires");
    }
  }
  Text out;
  add(out,
      "{{\n\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n"
      "\"created\": {},\n\"weft\": {},\n\"torch\": {},\n\"piece_bytes\": {},\n",
      kFormatName,
      kFormatVersion,
      manifest.step,
      json_string(manifest.created),
      json_string(manifest.weft_version),
      json_string(manifest.torch_version),
      manifest.piece_bytes);
  add_members(
      out,
      "files",
      manifest.files,
      [&](const std::string& name, const FileRecord& file) {
        add_file(out, name, file);
      });
  add_members(
      out,
      "tensors",
      manifest.tensors,
      [&](const std::string& name, const TensorRecord& tensor) {
        add_tensor(out, name, tensor);
      });
  add_object(out, "state", manifest.state);
  add_object(out, "layout", manifest.layout);
  if (!hmac_key.empty()) {
    add(out, "{}{}{}", kHmacBefore, kHmacDigits, kHmacAfter);
  }
  add(out, "{}{}{}", kHashBefore, kHashDigits, kHashAfter);
  std::string text = fmt::to_string(out);
  if (static_cast<int64_t>(text.size()) > limits::kManifestBytes) {
    size_t chunks = 0;
    size_t pieces = 0;
    for (const auto& [name, tensor] : manifest.tensors) {
      chunks += tensor.chunks.size();
      for (const auto& chunk : tensor.chunks) {
        pieces += chunk.piece_hashes.size();
      }
    }
    refuse(fmt::format(
        "the manifest has {} bytes, but at most {} are allowed. It lists {} "
        "tensors, which {} ranks wrote in {} chunks of {} pieces. Shard "
        "tensors over fewer ranks (a sharded optimizer by parameters instead "
        "of rows), or use larger pieces.",
        text.size(),
        limits::kManifestBytes,
        manifest.tensors.size(),
        manifest.files.size(),
        chunks,
        pieces));
  }
  if (!hmac_key.empty()) {
    const auto hmac = to_hex(hmac_sha256(hmac_key, text));
    text.replace(hmac_position(text), hmac.size(), hmac);
  }
  const auto digits = to_hex(hash(text));
  return text.replace(hash_position(text), kHexDigits, digits);
}

void stamp(Manifest& manifest) {
  manifest.weft_version = WEFT_VERSION;
  manifest.torch_version = TORCH_VERSION;
  const auto now =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  manifest.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

} // namespace weft::checkpoint
