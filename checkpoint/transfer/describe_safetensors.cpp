#include "checkpoint/transfer/describe_safetensors.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/tensor_header.h"
#include "checkpoint/format/tiling.h"
#include "checkpoint/format/weight_index.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
// More files than the ranks of any job. Each file costs an open() and a parse.
constexpr size_t kMaxForeignFiles = 100'000;
constexpr int64_t kMaxSize = int64_t{1} << 61;

struct ForeignPiece {
  std::string file;
  HeaderTensor what;
};

std::string piece_text(const ForeignPiece& piece) {
  return fmt::format(
      "{} {}{} (bytes {} to {} of {})",
      plain_name(piece.what.dtype),
      to_text(piece.what.shape),
      piece.what.offset ? " at " + to_text(*piece.what.offset) : "",
      piece.what.begin,
      piece.what.end,
      piece.file);
}

Chunk chunk_of(const ForeignPiece& piece) {
  Chunk chunk;
  chunk.file = piece.file;
  chunk.offset = piece.what.offset.value_or(
      std::vector<int64_t>(piece.what.shape.size(), 0));
  chunk.shape = piece.what.shape;
  chunk.begin = piece.what.begin;
  chunk.end = piece.what.end;
  return chunk;
}

class PieceAssembler {
 public:
  PieceAssembler(const Folder& folder, const std::string& name)
      : folder_(folder), name_(name) {}

  TensorRecord join(const std::vector<ForeignPiece>& pieces) const {
    check_alike(pieces);
    TensorRecord record;
    record.dtype = pieces.front().what.dtype;
    record.shape = whole_shape(pieces);
    const auto count = element_count(record.shape);
    const auto item = static_cast<int64_t>(c10::elementSize(record.dtype));
    if (count < 0 || count > kMaxSize / item) {
      fail(fmt::format("{} is too large", to_text(record.shape)));
    }
    // If several files contain the same replica, the first one is used.
    std::set<std::pair<std::vector<int64_t>, std::vector<int64_t>>> places;
    for (const auto& piece : pieces) {
      const auto chunk = chunk_of(piece);
      // A rank may have no rows. A tensor without elements is one chunk of 0
      // bytes.
      const bool is_wanted =
          count == 0 ? chunk.shape == record.shape && record.chunks.empty()
                     : element_count(chunk.shape) > 0;
      if (is_wanted && places.emplace(chunk.offset, chunk.shape).second) {
        record.chunks.push_back(chunk);
      }
    }
    if (count > 0) {
      if (const auto fault = tiling_error(record.shape, record.chunks)) {
        fail(fmt::format(
            "{}. Its pieces in {} must hold each element exactly once. Check "
            "that no file is missing or from another checkpoint",
            *fault,
            pieces.size() == 1 ? pieces.front().file
                               : fmt::format("{} files", pieces.size())));
      }
    }
    return record;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw_corrupt(
        folder_.path().string(),
        fmt::format("tensor {}: {}", in_quotes(name_), what));
  }

  void check_alike(const std::vector<ForeignPiece>& pieces) const {
    const auto& first = pieces.front();
    for (const auto& piece : pieces) {
      if (piece.what.dtype != first.what.dtype ||
          piece.what.shape.size() != first.what.shape.size() ||
          piece.what.global_shape != first.what.global_shape) {
        fail(fmt::format(
            "its pieces differ in dtype, number of dims or global shape: {} "
            "and {}",
            piece_text(first),
            piece_text(piece)));
      }
      if (&piece != &first && (!piece.what.offset || !first.what.offset)) {
        fail(fmt::format(
            "files {} and {} both have this tensor, but do not say which part "
            "of it they hold",
            first.file,
            piece.file));
      }
      for (const auto offset : chunk_of(piece).offset) {
        if (offset > kMaxSize) {
          fail(fmt::format("{} is out of range", piece_text(piece)));
        }
      }
    }
  }

  // Returns the shape that the files state, or the smallest shape that contains
  // all pieces.
  static std::vector<int64_t> whole_shape(
      const std::vector<ForeignPiece>& pieces) {
    if (pieces.front().what.global_shape) {
      return *pieces.front().what.global_shape;
    }
    std::vector<int64_t> shape(pieces.front().what.shape.size(), 0);
    for (const auto& piece : pieces) {
      const auto chunk = chunk_of(piece);
      for (size_t d = 0; d < shape.size(); ++d) {
        shape[d] = std::max(shape[d], chunk.offset[d] + chunk.shape[d]);
      }
    }
    return shape;
  }

  const Folder& folder_;
  const std::string& name_;
};

class Description {
 public:
  explicit Description(const Folder& folder) : folder_(folder) {}

  void add_file(const std::string& name) {
    const auto file = folder_.open_file(name);
    const auto source = file.path().string();
    TensorHeader header;
    FileRecord record;
    try {
      const auto text = read_header(file, source);
      record.bytes = file.size();
      record.header_bytes = std::ssize(text);
      header = parse_header(text, record.bytes, source);
    } catch (const std::system_error& error) {
      throw_corrupt(source, "it cannot be read: " + error.code().message());
    }
    for (auto& [key, tensor] : header.tensors) {
      pieces_[key].push_back({name, std::move(tensor)});
    }
    if (pieces_.size() > static_cast<size_t>(limits::kTensors)) {
      throw_corrupt(
          folder_.path().string(),
          fmt::format("more than {} tensors", limits::kTensors));
    }
    manifest_.files.emplace(name, record);
  }

  bool has(const std::string& tensor, const std::string& file) const {
    const auto found = pieces_.find(tensor);
    return found != pieces_.end() &&
           std::ranges::find(found->second, file, &ForeignPiece::file) !=
               found->second.end();
  }

  Manifest take() {
    manifest_.has_no_hashes = true;
    for (const auto& [name, pieces] : pieces_) {
      manifest_.tensors[name] = PieceAssembler(folder_, name).join(pieces);
    }
    return std::move(manifest_);
  }

 private:
  const Folder& folder_;
  std::map<std::string, std::vector<ForeignPiece>> pieces_;
  Manifest manifest_;
};

std::vector<std::string> tensor_files(const Folder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : folder.list()) {
    if (entry.name.ends_with(kSuffix) && !entry.is_folder) {
      names.push_back(entry.name);
    }
  }
  return names;
}

[[noreturn]] void refuse_folder(const Folder& folder) {
  const bool has_pickle = folder.has(".metadata");
  const bool has_weights = folder.has("pytorch_model.bin") ||
                           folder.has("pytorch_model.bin.index.json");
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "{}: the folder has no .safetensors file{}",
      folder.path().string(),
      has_pickle    ? ". It is a torch.distributed.checkpoint (DCP) checkpoint "
                      "with a pickled .metadata, and Weft does not read pickle. "
                      "Save it with HuggingFaceStorageWriter"
      : has_weights ? ". Weft does not read pickled weights "
                      "(pytorch_model.bin). Convert them to safetensors"
                    : ""));
}

// Checks that all files exist. The name "model-00001-of-00003.safetensors"
// contains their number.
void check_numbered(const Folder& folder, const std::string& name) {
  int index = 0;
  int count = 0;
  int end = 0;
  const bool is_numbered = std::sscanf(
                               name.c_str(),
                               "model-%5d-of-%5d.safetensors%n",
                               &index,
                               &count,
                               &end) == 2 &&
                           static_cast<size_t>(end) == name.size();
  for (int i = 1; is_numbered && i <= count; ++i) {
    const auto other =
        fmt::format("model-{:05}-of-{:05}.safetensors", i, count);
    if (!folder.has(other)) {
      throw_corrupt(
          folder.path().string(),
          fmt::format("{} exists, but {} does not", name, other));
    }
  }
}

Manifest describe_indexed(const Folder& folder) {
  const auto source = (folder.path() / kWeightIndexName).string();
  const auto file = folder.open_file(kWeightIndexName);
  const auto size = file.size();
  if (size > limits::kManifestBytes) {
    throw_corrupt(
        source,
        fmt::format(
            "the index has {} bytes, but at most {} are allowed",
            size,
            limits::kManifestBytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  const auto got = file.read_at(0, std::as_writable_bytes(std::span(text)));
  text.resize(static_cast<size_t>(got));
  const auto index = parse_weight_index(text, source);
  std::set<std::string> files;
  for (const auto& [tensor, name] : index) {
    files.insert(name);
  }
  Description description(folder);
  for (const auto& name : files) {
    if (!folder.has(name)) {
      throw_corrupt(
          source,
          fmt::format(
              "the index names file {}, which does not exist",
              in_quotes(name)));
    }
    description.add_file(name);
  }
  for (const auto& [tensor, name] : index) {
    if (!description.has(tensor, name)) {
      throw_corrupt(
          source,
          fmt::format(
              "the index says that tensor {} is in file {}, but the file does "
              "not have it",
              in_quotes(tensor),
              name));
    }
  }
  return description.take();
}

// Returns true for names like "shard-00002-model-00001-of-00001.safetensors", a
// file that one of several ranks wrote.
bool is_of_a_rank(std::string_view name) {
  return name.starts_with("shard-") &&
         name.find("-model-") != std::string_view::npos;
}

} // namespace

Manifest describe_safetensors(const Folder& folder) {
  if (folder.has(kWeightIndexName)) {
    return describe_indexed(folder);
  }
  const auto names = tensor_files(folder);
  if (names.empty()) {
    refuse_folder(folder);
  }
  if (names.size() > kMaxForeignFiles) {
    throw_corrupt(
        folder.path().string(),
        fmt::format(
            "{} files; at most {} are read", names.size(), kMaxForeignFiles));
  }
  // One name suffices, because it contains the number of files.
  if (const auto numbered = std::ranges::find_if(
          names,
          [](const std::string& name) { return name.starts_with("model-"); });
      numbered != names.end()) {
    check_numbered(folder, *numbered);
  }
  Description description(folder);
  for (const auto& name : names) {
    description.add_file(name);
  }
  return description.take();
}

Manifest describe_safetensors(const Folder& folder, const std::string& file) {
  if (is_of_a_rank(file)) {
    const auto names = tensor_files(folder);
    const auto count = std::ranges::count_if(names, is_of_a_rank);
    if (count > 1) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "{} is one of {} shards. Pass the folder that has all of them",
          (folder.path() / file).string(),
          count));
    }
  }
  Description description(folder);
  description.add_file(file);
  return description.take();
}

} // namespace weft::checkpoint
