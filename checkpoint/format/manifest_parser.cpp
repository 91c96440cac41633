#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/json_scan.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_rules.h"

namespace weft::checkpoint {
namespace {

// The object or list of the manifest that the scan is in.
enum class In {
  kRoot,
  kFiles,
  kFile,
  kTensors,
  kTensor,
  kChunks,
  kChunk,
  kNumbers,
  kHashes,
  kDigests,
  kText, // JSON of the trainer, kept as text
  kIgnored,
};

enum class Is { kInteger, kString, kObject, kList };

struct Member {
  In in;
  std::string_view name;
  Is is;
  bool is_needed = true;
};

// All members of format version 1. The index of a member is its bit in
// Frame::seen.
constexpr std::array kMembers = {
    Member{In::kRoot, "format", Is::kString},
    Member{In::kRoot, "version", Is::kInteger},
    Member{In::kRoot, "step", Is::kInteger},
    Member{In::kRoot, "created", Is::kString},
    Member{In::kRoot, "weft", Is::kString},
    Member{In::kRoot, "torch", Is::kString},
    Member{In::kRoot, "piece_bytes", Is::kInteger},
    Member{In::kRoot, "files", Is::kObject},
    Member{In::kRoot, "tensors", Is::kObject},
    Member{In::kRoot, "state", Is::kObject},
    Member{In::kRoot, "layout", Is::kObject},
    Member{In::kRoot, "hmac_sha256", Is::kString, false},
    Member{In::kRoot, "xxh3", Is::kString},
    Member{In::kFile, "bytes", Is::kInteger},
    Member{In::kFile, "header_bytes", Is::kInteger},
    Member{In::kFile, "header_xxh3", Is::kString},
    Member{In::kFile, "header_sha256", Is::kString, false},
    Member{In::kTensor, "dtype", Is::kString},
    Member{In::kTensor, "shape", Is::kList},
    Member{In::kTensor, "placements", Is::kString},
    Member{In::kTensor, "mesh", Is::kString},
    Member{In::kTensor, "chunks", Is::kList},
    Member{In::kChunk, "file", Is::kString},
    Member{In::kChunk, "offset", Is::kList},
    Member{In::kChunk, "shape", Is::kList},
    Member{In::kChunk, "bytes", Is::kList},
    Member{In::kChunk, "xxh3", Is::kList},
    Member{In::kChunk, "sha256", Is::kList, false},
};

const char* name_of(Is is) {
  constexpr std::array kNames = {
      "an integer", "a string", "an object", "a list"};
  return kNames[static_cast<size_t>(is)];
}

class ManifestScan : public JsonScan {
 public:
  ManifestScan(std::string_view text, const std::string& source)
      : JsonScan(source, limits::kManifestDepth), text_(text) {}

  Manifest take() { return std::move(manifest_); }

  void on_key(const std::string& name) override {
    member_ = nullptr;
    if (in() == In::kFiles) {
      file_ = &manifest_.files[name];
    } else if (in() == In::kTensors) {
      if (manifest_.tensors.size() >= static_cast<size_t>(limits::kTensors)) {
        fail(fmt::format("more than {} tensors", limits::kTensors));
      }
      tensor_ = &manifest_.tensors[name];
    } else {
      const auto* found = std::ranges::find_if(kMembers, [&](const Member& m) {
        return m.in == in() && m.name == name;
      });
      member_ = found == kMembers.end() ? nullptr : found;
    }
  }

  void on_begin(bool is_object) override {
    const In next = inside(is_object);
    if (next == In::kText && in() == In::kRoot) {
      text_begin_ = position() - 1;
    }
    stack_.push_back({next, 0, member_});
    member_ = nullptr;
  }

  void on_end() override {
    const auto closed = stack_.back();
    stack_.pop_back();
    for (size_t i = 0; i < kMembers.size(); ++i) {
      if (kMembers[i].in == closed.in && kMembers[i].is_needed &&
          ((closed.seen >> i) & 1U) == 0) {
        fail(fmt::format("\"{}\" is missing", kMembers[i].name));
      }
    }
    if (closed.in == In::kText && in() == In::kRoot) {
      auto& target =
          closed.member->name == "state" ? manifest_.state : manifest_.layout;
      target = text_.substr(
          static_cast<size_t>(text_begin_),
          static_cast<size_t>(position() - text_begin_));
    } else if (closed.member != nullptr && closed.member->name == "bytes") {
      take_range();
    }
  }

  void on_integer(int64_t value) override {
    if (in() == In::kNumbers) {
      if (numbers_->size() >= static_cast<size_t>(limits::kDims)) {
        fail(fmt::format("more than {} numbers", limits::kDims));
      }
      numbers_->push_back(value);
    } else if (expects(Is::kInteger)) {
      take_integer(value);
    }
  }

  void on_string(const std::string& value) override {
    if (in() == In::kHashes) {
      chunk_->piece_hashes.push_back(hash_in(value));
    } else if (in() == In::kDigests) {
      chunk_->piece_sha256.push_back(digest_in(value));
    } else if (expects(Is::kString)) {
      take_string(value);
    }
  }

  void on_other(const char* what) override {
    if (member_ != nullptr) {
      fail(fmt::format("got {}, expected {}", what, name_of(member_->is)));
    }
    if (in() != In::kText && in() != In::kIgnored && in() != In::kRoot &&
        in() != In::kFile && in() != In::kTensor && in() != In::kChunk) {
      fail(fmt::format("{} is not expected here", what));
    }
  }

 private:
  struct Frame {
    In in;
    uint64_t seen;        // Bit i stands for kMembers[i].
    const Member* member; // The member whose value this bracket is.
  };

  In in() const { return stack_.empty() ? In::kIgnored : stack_.back().in; }

  // Returns true if the value belongs to a known member, and marks the member
  // as seen. Fails if the value has another type than the member.
  bool expects(Is is) {
    if (member_ == nullptr) {
      const bool is_free = in() == In::kText || in() == In::kIgnored ||
                           in() == In::kRoot || in() == In::kFile ||
                           in() == In::kTensor || in() == In::kChunk;
      if (!is_free) {
        fail(fmt::format("{} is not expected here", name_of(is)));
      }
      return false;
    }
    if (member_->is != is) {
      fail(fmt::format(
          "got {}, expected {}", name_of(is), name_of(member_->is)));
    }
    stack_.back().seen |= uint64_t{1} << (member_ - kMembers.data());
    return true;
  }

  // Returns the kind of the object or list that begins here.
  In inside(bool is_object) {
    if (stack_.empty()) {
      return In::kRoot;
    }
    if (in() == In::kText || in() == In::kIgnored) {
      return in();
    }
    const In element = in() == In::kFiles     ? In::kFile
                       : in() == In::kTensors ? In::kTensor
                       : in() == In::kChunks  ? In::kChunk
                                              : In::kIgnored;
    if (element != In::kIgnored) {
      if (!is_object) {
        fail("got a list, expected an object");
      }
      if (element == In::kChunk) {
        chunk_ = &tensor_->chunks.emplace_back();
      }
      return element;
    }
    if (!expects(is_object ? Is::kObject : Is::kList)) {
      return In::kIgnored;
    }
    return in() == In::kRoot ? root_member() : list_member();
  }

  In root_member() const {
    return member_->name == "files"     ? In::kFiles
           : member_->name == "tensors" ? In::kTensors
                                        : In::kText;
  }

  In list_member() {
    if (member_->name == "chunks") {
      return In::kChunks;
    }
    if (member_->name == "xxh3") {
      return In::kHashes;
    }
    if (member_->name == "sha256") {
      return In::kDigests;
    }
    range_.clear();
    numbers_ = member_->name == "offset"  ? &chunk_->offset
               : member_->name == "bytes" ? &range_
               : in() == In::kChunk       ? &chunk_->shape
                                          : &tensor_->shape;
    return In::kNumbers;
  }

  void take_integer(int64_t value) {
    const auto name = member_->name;
    if (name == "version" && value != kFormatVersion) {
      fail(fmt::format(
          "the format version is {}, but this program reads {}. Use a newer "
          "weft.",
          value,
          kFormatVersion));
    } else if (name == "step") {
      manifest_.step = value;
    } else if (name == "piece_bytes") {
      manifest_.piece_bytes = value;
    } else if (name == "bytes") {
      file_->bytes = value;
    } else if (name == "header_bytes") {
      file_->header_bytes = value;
    }
  }

  void take_string(const std::string& value) {
    const auto name = member_->name;
    if (name == "format" && value != kFormatName) {
      fail(fmt::format("{} belongs to another program", in_quotes(value)));
    } else if (name == "created") {
      manifest_.created = value;
    } else if (name == "weft") {
      manifest_.weft_version = value;
    } else if (name == "torch") {
      manifest_.torch_version = value;
    } else if (name == "header_xxh3") {
      file_->header_hash = hash_in(value);
    } else if (name == "header_sha256") {
      file_->header_sha256 = digest_in(value);
    } else if (name == "dtype") {
      const auto dtype = from_format_name(value);
      if (!dtype) {
        fail(fmt::format("unknown dtype {}", in_quotes(value)));
      }
      tensor_->dtype = *dtype;
    } else if (name == "placements") {
      tensor_->placements = value;
    } else if (name == "mesh") {
      tensor_->mesh = value;
    } else if (name == "file") {
      chunk_->file = value;
    }
  }

  void take_range() {
    if (range_.size() != 2) {
      fail("expected two numbers");
    }
    chunk_->begin = range_[0];
    chunk_->end = range_[1];
  }

  uint64_t hash_in(const std::string& text) const {
    const auto value = from_hex(text);
    if (!value) {
      fail(fmt::format("{} is not a hash", in_quotes(text)));
    }
    return *value;
  }

  Sha256 digest_in(const std::string& text) const {
    const auto value = sha256_from_hex(text);
    if (!value) {
      fail(fmt::format("{} is not a SHA-256 hash", in_quotes(text)));
    }
    return *value;
  }

  std::string_view text_;
  Manifest manifest_;
  std::vector<Frame> stack_;
  const Member* member_ = nullptr;
  FileRecord* file_ = nullptr;
  TensorRecord* tensor_ = nullptr;
  Chunk* chunk_ = nullptr;
  std::vector<int64_t>* numbers_ = nullptr;
  std::vector<int64_t> range_;
  int64_t text_begin_ = 0;
};

// Checks the hash of the file, before its content is parsed.
void check_hash(std::string_view text, const std::string& source) {
  const auto tail = kHashBefore.size() + kHashDigits.size() + kHashAfter.size();
  const auto at = text.size() < tail ? 0 : hash_position(text);
  if (at == 0 || !text.ends_with(kHashAfter) ||
      !text.substr(0, at).ends_with(kHashBefore)) {
    throw_corrupt(
        source,
        fmt::format(
            "the file of {} bytes does not end with its hash. It is truncated, "
            "or Weft did not write it",
            text.size()));
  }
  std::string zeroed(text);
  zeroed.replace(at, kHexDigits, kHashDigits);
  const auto said = text.substr(at, kHexDigits);
  const auto got = to_hex(hash(zeroed));
  if (said != got) {
    throw_corrupt(
        source,
        fmt::format(
            "the hash of the content is {}, but the file states {}. The file "
            "is damaged",
            got,
            in_quotes(said)));
  }
}

// Does not print the correct HMAC, because a reader of the message could use it
// to forge a checkpoint.
void check_hmac(
    std::string_view text,
    const std::string& source,
    std::string_view key) {
  const auto at = hmac_position(text);
  if (at == std::string_view::npos) {
    throw_corrupt(
        source,
        "an HMAC key was given, but this checkpoint was saved without one. "
        "Leave the key out only if you trust the checkpoint");
  }
  const auto said = sha256_from_hex(text.substr(at, kHmacDigits.size()));
  std::string zeroed(text);
  zeroed.replace(at, kHmacDigits.size(), kHmacDigits);
  zeroed.replace(hash_position(text), kHexDigits, kHashDigits);
  if (!said || !is_equal(*said, hmac_sha256(key, zeroed))) {
    throw_corrupt(
        source,
        "its HMAC does not match the key: it was saved with another key, or "
        "modified without the key");
  }
}

} // namespace

Manifest parse_manifest(
    std::string_view text,
    const std::string& source,
    std::string_view hmac_key) {
  if (static_cast<int64_t>(text.size()) > limits::kManifestBytes) {
    throw_corrupt(
        source,
        fmt::format(
            "the manifest has {} bytes, but at most {} are allowed",
            text.size(),
            limits::kManifestBytes));
  }
  check_hash(text, source);
  if (!hmac_key.empty()) {
    check_hmac(text, source, hmac_key);
  }
  ManifestScan scan(text, source);
  scan.run(text);
  auto manifest = scan.take();
  if (const auto fault = find_violation(manifest)) {
    throw_corrupt(source, *fault);
  }
  if (!hmac_key.empty()) {
    if (const auto fault = find_missing_sha256(manifest)) {
      throw_corrupt(source, *fault + ", but a key was given");
    }
  }
  return manifest;
}

} // namespace weft::checkpoint
