#include "checkpoint/verify.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "checkpoint/files/error.h"
#include "checkpoint/files/text.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/checked_file.h"

namespace weft::checkpoint {
namespace {

class Verifier {
 public:
  Verifier(
      const Folder& folder,
      const Manifest& manifest,
      const Progress& progress)
      : folder_(folder), manifest_(manifest), progress_(progress) {
    for (const auto& [name, file] : manifest.files) {
      total_ += file.bytes;
    }
  }

  std::vector<Corruption> run() {
    check_for_unknown_entries();
    auto chunks = chunks_by_file(manifest_);
    for (const auto& [name, record] : manifest_.files) {
      check_file(name, chunks[name]);
      before_ += record.bytes;
      tell(name, 0);
    }
    return std::move(damages_);
  }

 private:
  void check_for_unknown_entries() {
    for (const auto& entry : folder_.list()) {
      sizes_[entry.name] = entry.bytes;
      if (entry.name != kManifestName &&
          !manifest_.files.contains(entry.name)) {
        damages_.push_back({entry.name, "", -1, "it is not in the manifest"});
      }
    }
  }

  void check_file(
      const std::string& name,
      const std::vector<PlacedChunk>& chunks) {
    std::optional<CheckedFile> file;
    try {
      file.emplace(folder_, manifest_, name, chunks);
    } catch (const CheckpointError& error) {
      // If the size of the file is right, its header is damaged.
      const auto size = sizes_.find(name);
      const bool is_header = size != sizes_.end() &&
                             size->second == manifest_.files.at(name).bytes;
      damages_.push_back(
          {name,
           "",
           is_header ? 0 : -1,
           without_path(error, name) + describe_lost_chunks(chunks)});
      return;
    }
    for (const auto& placed : chunks) {
      check_chunk(name, *file, placed);
    }
  }

  static std::string describe_lost_chunks(
      const std::vector<PlacedChunk>& chunks) {
    constexpr size_t kMaxListed = 5;
    std::string text;
    for (size_t i = 0; i < std::min(kMaxListed, chunks.size()); ++i) {
      text += fmt::format(
          "{} {} at {} of {}",
          i == 0 ? "; it has" : ",",
          to_text(chunks[i].chunk->shape),
          to_text(chunks[i].chunk->offset),
          in_quotes(*chunks[i].key));
    }
    if (chunks.size() > kMaxListed) {
      text += fmt::format(" and {} more", chunks.size() - kMaxListed);
    }
    return text;
  }

  // Checks a chunk. Reports adjacent bad pieces as one damage.
  void check_chunk(
      const std::string& name,
      const CheckedFile& file,
      const PlacedChunk& placed) {
    const auto& chunk = *placed.chunk;
    const auto size = chunk.end - chunk.begin;
    int64_t bad = 0;
    std::string first;
    const auto report = [&](int64_t end) {
      if (bad > 0) {
        const auto more =
            bad == 1 ? std::string()
                     : fmt::format(" (and the {} pieces after it)", bad - 1);
        damages_.push_back(
            {name,
             *placed.key,
             chunk.begin + end - bad * manifest_.piece_bytes,
             first + more});
      }
      bad = 0;
    };
    // Allocates no more than the chunk, which is inside the file: piece_bytes
    // of the manifest can be much larger.
    buffer_.resize(static_cast<size_t>(std::max(
        static_cast<int64_t>(buffer_.size()),
        std::min(manifest_.piece_bytes, size))));
    int64_t at = 0;
    for (; at < size; at += manifest_.piece_bytes) {
      const auto length = std::min(manifest_.piece_bytes, size - at);
      const auto fault = file.read_piece(
          chunk, at, std::span(buffer_).first(static_cast<size_t>(length)));
      in_file_ += length;
      tell(name, in_file_);
      if (fault) {
        first = bad == 0 ? *fault : first;
        ++bad;
      } else {
        report(at);
      }
    }
    report(at);
  }

  void tell(const std::string& name, int64_t in_file) {
    in_file_ = in_file;
    if (progress_) {
      progress_(before_ + in_file, total_, name);
    }
  }

  // Removes the path from the text, because the damage contains the file name.
  std::string without_path(
      const CheckpointError& error,
      const std::string& name) const {
    std::string text = error.what_without_backtrace();
    for (const auto& path : {folder_.path() / name, folder_.path()}) {
      const auto prefix = "[checkpoint] " + path.string() + ": ";
      if (text.starts_with(prefix)) {
        return text.substr(prefix.size());
      }
    }
    return text;
  }

  const Folder& folder_;
  const Manifest& manifest_;
  const Progress& progress_;
  // The bytes of all files, of the files that are done, and of the current
  // file.
  int64_t total_ = 0;
  int64_t before_ = 0;
  int64_t in_file_ = 0;
  std::map<std::string, int64_t> sizes_;
  std::vector<std::byte> buffer_;
  std::vector<Corruption> damages_;
};

} // namespace

std::string to_string(const Corruption& damage) {
  auto text = damage.file;
  if (!damage.tensor.empty()) {
    text += (text.empty() ? "tensor " : ": tensor ") + in_quotes(damage.tensor);
  }
  return text + (text.empty() ? "" : ": ") + damage.what;
}

std::vector<Corruption> verify(
    const std::filesystem::path& step_folder,
    std::string_view hmac_key,
    const Progress& progress) {
  const StepPin pin(step_folder);
  try {
    const auto manifest = read_manifest(pin.folder(), hmac_key);
    return Verifier(pin.folder(), manifest, progress).run();
  } catch (const CheckpointError& error) {
    return {{kManifestName, "", -1, error.what_without_backtrace()}};
  }
}

} // namespace weft::checkpoint
