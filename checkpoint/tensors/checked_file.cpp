#include "checkpoint/tensors/checked_file.h"

#include <system_error>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/tensor_header.h"

namespace weft::checkpoint {
namespace {

std::string place_of(const HeaderTensor& tensor) {
  return fmt::format(
      "{} {} at {} of {}, bytes {} to {}",
      format_name(tensor.dtype),
      to_text(tensor.shape),
      tensor.offset ? to_text(*tensor.offset) : "?",
      tensor.global_shape ? to_text(*tensor.global_shape) : "?",
      tensor.begin,
      tensor.end);
}

// Removes fields from `ours` that the file's header lacks. Files of other
// programs need not contain the offset in the full tensor and its shape.
void drop_unreported(HeaderTensor& ours, const HeaderTensor& theirs) {
  if (!theirs.offset) {
    ours.offset.reset();
  }
  if (!theirs.global_shape) {
    ours.global_shape.reset();
  }
}

void check_header(
    const TensorHeader& header,
    const Manifest& manifest,
    const std::vector<PlacedChunk>& chunks,
    const std::string& source) {
  const auto step = header.metadata.find(kStepKey);
  if (!manifest.has_no_hashes && step != header.metadata.end() &&
      step->second != std::to_string(manifest.step)) {
    throw_corrupt(
        source,
        fmt::format(
            "the file belongs to step {}, but the manifest is for step {}",
            in_quotes(step->second),
            manifest.step));
  }
  for (const auto& [key, tensor, chunk] : chunks) {
    const auto found = header.tensors.find(*key);
    if (found == header.tensors.end()) {
      throw_corrupt(
          source,
          fmt::format(
              "the header of the file does not list tensor {}",
              in_quotes(*key)));
    }
    HeaderTensor said{
        tensor->dtype,
        chunk->shape,
        chunk->begin,
        chunk->end,
        chunk->offset,
        tensor->shape};
    if (manifest.has_no_hashes) {
      drop_unreported(said, found->second);
    }
    const auto theirs = place_of(found->second);
    const auto ours = place_of(said);
    if (theirs != ours) {
      throw_corrupt(
          source,
          fmt::format(
              "tensor {}: the header of the file says {}, but the manifest "
              "says {}",
              in_quotes(*key),
              theirs,
              ours));
    }
  }
  // A file of another program may contain copies of tensors in other files.
  if (!manifest.has_no_hashes && header.tensors.size() != chunks.size()) {
    throw_corrupt(
        source,
        fmt::format(
            "the header of the file lists {} tensors, but the manifest lists "
            "{}",
            header.tensors.size(),
            chunks.size()));
  }
}

std::string read_checked_header(
    const File& file,
    const FileRecord& record,
    bool has_no_hashes,
    const std::string& source) {
  const auto size = file.size();
  if (size != record.bytes) {
    throw_corrupt(
        source,
        fmt::format(
            "the file has {} bytes, but the manifest says {}",
            size,
            record.bytes));
  }
  std::string bytes(static_cast<size_t>(record.header_bytes), '\0');
  if (file.read_at(0, std::as_writable_bytes(std::span(bytes))) !=
      record.header_bytes) {
    throw_corrupt(source, "the file was truncated while it was being read");
  }
  if (has_no_hashes) {
    return bytes;
  }
  if (const auto got = hash(bytes); got != record.header_hash) {
    throw_corrupt(
        source,
        fmt::format(
            "byte 0: the header has hash {}, but the manifest says {}",
            to_hex(got),
            to_hex(record.header_hash)));
  }
  if (record.header_sha256) {
    const auto got = sha256(std::as_bytes(std::span(bytes)));
    if (got != *record.header_sha256) {
      throw_corrupt(
          source,
          fmt::format(
              "byte 0: the header has SHA-256 {}, but the manifest says {}",
              to_hex(got),
              to_hex(*record.header_sha256)));
    }
  }
  return bytes;
}

} // namespace

std::map<std::string_view, std::vector<PlacedChunk>> chunks_by_file(
    const Manifest& manifest) {
  std::map<std::string_view, std::vector<PlacedChunk>> files;
  for (const auto& [key, tensor] : manifest.tensors) {
    for (const auto& chunk : tensor.chunks) {
      files[chunk.file].push_back({&key, &tensor, &chunk});
    }
  }
  return files;
}

CheckedFile::CheckedFile(
    const Folder& folder,
    const Manifest& manifest,
    const std::string& name,
    const std::vector<PlacedChunk>& chunks)
    : file_(folder.open_file(name)),
      piece_bytes_(manifest.piece_bytes),
      has_no_hashes_(manifest.has_no_hashes),
      header_bytes_(manifest.files.at(name).header_bytes) {
  const auto source = file_.path().string();
  try {
    const auto& record = manifest.files.at(name);
    const auto bytes =
        read_checked_header(file_, record, has_no_hashes_, source);
    const auto header = parse_header(bytes, record.bytes, source);
    check_header(header, manifest, chunks, source);
  } catch (const std::system_error& error) {
    throw_corrupt(source, "it cannot be read: " + error.code().message());
  }
}

std::optional<std::string> CheckedFile::read_piece(
    const Chunk& chunk,
    int64_t begin,
    std::span<std::byte> out) const {
  const auto at = chunk.begin + begin;
  int64_t got_bytes = 0;
  try {
    got_bytes = file_.read_at(at, out);
  } catch (const std::system_error& error) {
    return fmt::format(
        "byte {}: it cannot be read: {}", at, error.code().message());
  }
  if (got_bytes != static_cast<int64_t>(out.size())) {
    return fmt::format("byte {}: the file ends here", at + got_bytes);
  }
  if (has_no_hashes_) {
    return std::nullopt;
  }
  const auto differ = [&](const char* what, const auto& got, const auto& said) {
    return fmt::format(
        "byte {}: {} bytes have {} {}, the manifest says {}",
        at,
        out.size(),
        what,
        to_hex(got),
        to_hex(said));
  };
  const auto index = static_cast<size_t>(begin / piece_bytes_);
  const auto said = chunk.piece_hashes[index];
  if (const auto got = hash(out); got != said) {
    return differ("hash", got, said);
  }
  if (!chunk.piece_sha256.empty()) {
    const auto& digest = chunk.piece_sha256[index];
    if (const auto got = sha256(out); got != digest) {
      return differ("SHA-256", got, digest);
    }
  }
  return std::nullopt;
}

} // namespace weft::checkpoint
