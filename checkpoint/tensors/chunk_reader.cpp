#include <algorithm>
#include <cstring>
#include <list>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/tensors/checked_file.h"
#include "checkpoint/tensors/tensor_file.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using MutableBytes = std::span<std::byte>;

// A file that was read. `file` is empty if the file was closed to limit the
// number of open files. The next read opens and checks it again.
struct OpenedFile {
  std::string_view name;
  std::optional<CheckedFile> file;
};

// A verified piece that was read because the caller wanted a part of it.
struct CachedPiece {
  const OpenedFile* file = nullptr;
  int64_t begin = 0; // offset in the file
  std::vector<std::byte> bytes;
};

// The intersection of a chunk and the requested box, with its offsets in the
// chunk and in the box.
struct Overlap {
  std::vector<int64_t> shape;
  std::vector<int64_t> in_chunk;
  std::vector<int64_t> in_target;
};

bool overlap_of(
    const Chunk& chunk,
    const std::vector<int64_t>& offset,
    const std::vector<int64_t>& shape,
    Overlap& overlap) {
  overlap = {};
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto begin = std::max(chunk.offset[d], offset[d]);
    const auto end =
        std::min(chunk.offset[d] + chunk.shape[d], offset[d] + shape[d]);
    if (begin >= end) {
      return false;
    }
    overlap.shape.push_back(end - begin);
    overlap.in_chunk.push_back(begin - chunk.offset[d]);
    overlap.in_target.push_back(begin - offset[d]);
  }
  return true;
}

int64_t flat_index(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& index) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    flat = flat * shape[d] + index[d];
  }
  return flat;
}

} // namespace

struct ChunkReader::State {
  const Folder& folder;
  const Manifest& manifest;
  int64_t max_cached;
  std::map<std::string_view, std::vector<PlacedChunk>> chunks;
  std::map<std::string, OpenedFile, std::less<>> files;
  int64_t open_files = 0;
  std::list<CachedPiece> cache; // the most recently used first
  int64_t bytes_read = 0;

  OpenedFile& touch(const std::string& tensor, const Chunk& chunk);
  void read(
      const std::string& tensor,
      const Chunk& chunk,
      OpenedFile& file,
      int64_t begin,
      MutableBytes out);
  void read_piece(
      const std::string& tensor,
      const Chunk& chunk,
      const OpenedFile& file,
      int64_t begin,
      MutableBytes out);
  const CachedPiece& piece(
      const std::string& tensor,
      const Chunk& chunk,
      const OpenedFile& file,
      int64_t begin);
  void read_overlap(
      const std::string& tensor,
      const Chunk& chunk,
      const Overlap& overlap,
      const std::vector<int64_t>& shape,
      int64_t item,
      MutableBytes out);
};

// Returns the file of the chunk and opens it if necessary. A checkpoint can
// have very many files, so all are closed if kMaxOpen are open.
OpenedFile& ChunkReader::State::touch(
    const std::string& tensor,
    const Chunk& chunk) {
  constexpr int64_t kMaxOpen = 128;
  const auto& name = chunk.file;
  const auto found = files.find(name);
  if (found != files.end() && found->second.file) {
    return found->second;
  }
  if (manifest.files.count(name) == 0) {
    throw_corrupt(
        folder.path().string(),
        fmt::format("file {} is not in the manifest", in_quotes(name)));
  }
  if (open_files >= kMaxOpen) {
    for (auto& [other, touched] : files) {
      touched.file.reset();
    }
    open_files = 0;
  }
  try {
    CheckedFile file(folder, manifest, name, chunks[name]);
    bytes_read += file.header_bytes();
    ++open_files;
    auto& touched = files[name];
    touched.file.emplace(std::move(file));
    return touched;
  } catch (const CheckpointError& error) {
    mesh::throw_error<CheckpointError>(fmt::format(
        "{}; the file holds the piece of shape {} at offset {} of tensor {}",
        error.what_without_backtrace(),
        to_text(chunk.shape),
        to_text(chunk.offset),
        in_quotes(tensor)));
  }
}

void ChunkReader::State::read_piece(
    const std::string& tensor,
    const Chunk& chunk,
    const OpenedFile& file,
    int64_t begin,
    MutableBytes out) {
  if (const auto fault = file.file->read_piece(chunk, begin, out)) {
    throw_corrupt(
        (folder.path() / chunk.file).string(),
        fmt::format("tensor {}, {}", in_quotes(tensor), *fault));
  }
  bytes_read += static_cast<int64_t>(out.size());
}

const CachedPiece& ChunkReader::State::piece(
    const std::string& tensor,
    const Chunk& chunk,
    const OpenedFile& file,
    int64_t begin) {
  const auto at = chunk.begin + begin;
  const auto found = std::ranges::find_if(cache, [&](const CachedPiece& piece) {
    return piece.file == &file && piece.begin == at;
  });
  if (found != cache.end()) {
    cache.splice(cache.begin(), cache, found);
    return cache.front();
  }
  CachedPiece fresh;
  if (static_cast<int64_t>(cache.size()) >= max_cached) {
    fresh = std::move(cache.back());
    cache.pop_back();
  }
  const auto size =
      std::min(manifest.piece_bytes, chunk.end - chunk.begin - begin);
  fresh.file = &file;
  fresh.begin = at;
  fresh.bytes.resize(static_cast<size_t>(size));
  read_piece(tensor, chunk, file, begin, fresh.bytes);
  cache.push_front(std::move(fresh));
  return cache.front();
}

void ChunkReader::State::read(
    const std::string& tensor,
    const Chunk& chunk,
    OpenedFile& file,
    int64_t begin,
    MutableBytes out) {
  const auto size = chunk.end - chunk.begin;
  const auto end = begin + static_cast<int64_t>(out.size());
  for (auto at = begin; at < end;) {
    const auto piece_begin = at / manifest.piece_bytes * manifest.piece_bytes;
    const auto piece_end = std::min(piece_begin + manifest.piece_bytes, size);
    const auto stop = std::min(piece_end, end);
    const auto target = out.subspan(
        static_cast<size_t>(at - begin), static_cast<size_t>(stop - at));
    if (at == piece_begin && stop == piece_end) {
      read_piece(tensor, chunk, file, piece_begin, target);
    } else {
      const auto& cached = piece(tensor, chunk, file, piece_begin);
      std::memcpy(
          target.data(),
          &cached.bytes[static_cast<size_t>(at - piece_begin)],
          target.size());
    }
    at = stop;
  }
}

// Reads row by row. Rows that are contiguous in both the chunk and the target
// are read at once.
void ChunkReader::State::read_overlap(
    const std::string& tensor,
    const Chunk& chunk,
    const Overlap& overlap,
    const std::vector<int64_t>& shape,
    int64_t item,
    MutableBytes out) {
  auto& file = touch(tensor, chunk);
  auto in_chunk = overlap.in_chunk;
  auto in_target = overlap.in_target;
  // The dims from here on form a row. The loop below iterates over the others.
  auto row_dims = overlap.shape.size();
  int64_t run = 1;
  bool joined = true;
  while (row_dims > 0 && joined) {
    --row_dims;
    run *= overlap.shape[row_dims];
    joined = overlap.shape[row_dims] == chunk.shape[row_dims] &&
             overlap.shape[row_dims] == shape[row_dims];
  }
  const auto bytes = static_cast<size_t>(run * item);
  while (true) {
    read(
        tensor,
        chunk,
        file,
        flat_index(chunk.shape, in_chunk) * item,
        out.subspan(
            static_cast<size_t>(flat_index(shape, in_target) * item), bytes));
    auto d = row_dims;
    for (; d > 0; --d) {
      const auto first = overlap.in_chunk[d - 1];
      ++in_chunk[d - 1];
      ++in_target[d - 1];
      if (in_chunk[d - 1] < first + overlap.shape[d - 1]) {
        break;
      }
      in_chunk[d - 1] = first;
      in_target[d - 1] = overlap.in_target[d - 1];
    }
    if (d == 0) {
      return;
    }
  }
}

ChunkReader::ChunkReader(
    const Folder& folder,
    const Manifest& manifest,
    int64_t cached_pieces)
    : state_(new State{
          folder,
          manifest,
          std::max<int64_t>(cached_pieces, 1),
          chunks_by_file(manifest),
          {},
          0,
          {},
          0}) {}

ChunkReader::ChunkReader(ChunkReader&&) noexcept = default;
ChunkReader::~ChunkReader() = default;

void ChunkReader::read(
    const std::string& tensor,
    const Chunk& chunk,
    int64_t begin,
    int64_t end,
    std::span<std::byte> out) {
  TORCH_INTERNAL_ASSERT(
      begin >= 0 && begin <= end && end <= chunk.end - chunk.begin &&
          static_cast<int64_t>(out.size()) == end - begin,
      "bytes ",
      begin,
      " to ",
      end,
      " of a chunk of ",
      chunk.end - chunk.begin,
      " into ",
      out.size());
  state_->read(tensor, chunk, state_->touch(tensor, chunk), begin, out);
}

void ChunkReader::read_box(
    const std::string& tensor,
    const std::vector<int64_t>& offset,
    const std::vector<int64_t>& shape,
    std::span<std::byte> out) {
  const auto found = state_->manifest.tensors.find(tensor);
  if (found == state_->manifest.tensors.end()) {
    throw_corrupt(
        state_->folder.path().string(),
        fmt::format("there is no tensor {}", in_quotes(tensor)));
  }
  const auto& record = found->second;
  const auto item = static_cast<int64_t>(c10::elementSize(record.dtype));
  bool inside = offset.size() == record.shape.size() &&
                shape.size() == record.shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) {
    inside = offset[d] >= 0 && shape[d] >= 0 && shape[d] <= record.shape[d] &&
             offset[d] <= record.shape[d] - shape[d];
  }
  TORCH_INTERNAL_ASSERT(
      inside && static_cast<int64_t>(out.size()) == element_count(shape) * item,
      "a box ",
      to_text(shape),
      " at ",
      to_text(offset),
      " of ",
      to_text(record.shape),
      " into ",
      out.size(),
      " bytes");
  if (out.empty()) {
    return;
  }
  Overlap overlap;
  for (const auto& chunk : record.chunks) {
    if (overlap_of(chunk, offset, shape, overlap)) {
      state_->read_overlap(tensor, chunk, overlap, shape, item, out);
    }
  }
}

int64_t ChunkReader::bytes_read() const {
  return state_->bytes_read;
}

} // namespace weft::checkpoint
