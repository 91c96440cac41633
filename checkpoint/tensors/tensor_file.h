#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/rate_limiter.h"
#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// A piece of a tensor to be written.
struct FileTensor {
  std::string key;
  /// Where `data` lies in the whole tensor.
  std::vector<int64_t> offset;
  std::vector<int64_t> global_shape;
  /// Contiguous, on the CPU, not empty.
  at::Tensor data;
};

struct WriteOptions {
  int64_t step = 0;
  int64_t piece_bytes = kDefaultPieceBytes;
  /// On the disk when the call returns.
  bool sync = true;
  /// SHA-256 of the header and of every piece, beside XXH3.
  bool sha256 = false;
  /// Slows the writing down; none: as fast as it goes.
  RateLimiter* rate_limiter = nullptr;
};

struct WrittenFile {
  std::string name;
  FileRecord record;
  /// Key and chunk of each tensor.
  std::vector<std::pair<std::string, Chunk>> chunks;
};

/// "shard-00003-00000.safetensors": the first, second... file of a writer.
std::string tensor_file_name(int64_t writer, int64_t index);

/// Writes a safetensors file into `folder`, in one pass over the tensors and
/// without copying them, and hashes on the way. `tensors` has no key twice, and
/// is not empty.
/// Throws: std::system_error with path and errno; mesh::UsageError for what the
/// format cannot hold (a dtype, a name, too many dims).
WrittenFile write_tensor_file(
    const Folder& folder,
    const std::string& name,
    const std::vector<FileTensor>& tensors,
    const WriteOptions& options = {});

/// Reads chunks of one checkpoint and verifies what it reads: the size and
/// header of a file when it is first touched, and every piece before any byte
/// of it is handed out. For one thread at a time; take one for each thread.
/// Lifetime: `folder` and `manifest` must outlive it.
class ChunkReader {
 public:
  /// `cached_pieces`: how many partly used pieces are remembered, so that rows
  /// of a column shard do not read their piece again.
  ChunkReader(
      const Folder& folder,
      const Manifest& manifest,
      int64_t cached_pieces = 4);
  ChunkReader(ChunkReader&&) noexcept;
  ~ChunkReader();

  /// Copies bytes [begin, end) of `chunk`, counted from its first, to `out`,
  /// which has that size. Pieces that lie wholly inside are read straight into
  /// `out`.
  /// Throws: CheckpointError naming folder, file, tensor, offset and both
  /// hashes. `out` is undefined then.
  void read(
      const std::string& tensor,
      const Chunk& chunk,
      int64_t begin,
      int64_t end,
      std::span<std::byte> out);

  /// Copies the box of `tensor` at `offset` with `shape` to `out`, row-major,
  /// from all chunks that it meets; reads nothing else.
  /// Throws: as read(); CheckpointError if there is no such tensor.
  void read_box(
      const std::string& tensor,
      const std::vector<int64_t>& offset,
      const std::vector<int64_t>& shape,
      std::span<std::byte> out);

  /// Bytes that have come from files, headers included.
  int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::checkpoint
