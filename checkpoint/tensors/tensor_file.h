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

/// A box of a tensor to write.
struct FileTensor {
  std::string key;
  /// The position of `data` in the full tensor.
  std::vector<int64_t> offset;
  std::vector<int64_t> global_shape;
  /// The values: contiguous, on the CPU, not empty.
  at::Tensor data;
};

struct WriteOptions {
  int64_t step = 0;
  int64_t piece_bytes = kDefaultPieceBytes;
  /// Blocks until the file is on the disk.
  bool fsync = true;
  /// Stores a SHA-256 of the header and of every piece in addition to XXH3.
  bool sha256 = false;
  /// Limits the write rate. Null means no limit.
  RateLimiter* rate_limiter = nullptr;
};

struct WrittenFile {
  std::string name;
  FileRecord record;
  /// The key and chunk of each tensor.
  std::vector<std::pair<std::string, Chunk>> chunks;
};

/// Returns the name of the file with `index` (from 0) of a writer:
/// "shard-00003-00000.safetensors".
std::string tensor_file_name(int64_t writer, int64_t index);

/// Writes a safetensors file into `folder`, in one pass over the tensors and
/// without copying them, and computes the hashes meanwhile. `tensors` must not
/// be empty or have a key twice.
/// Throws: std::system_error with path and errno; mesh::UsageError if the
/// format cannot represent a tensor (its dtype, its name, too many dims).
WrittenFile write_tensor_file(
    const Folder& folder,
    const std::string& name,
    const std::vector<FileTensor>& tensors,
    const WriteOptions& options = {});

/// Reads and verifies chunks of one checkpoint: the size and header of a file
/// at the first access, and every piece before any byte of it is returned. Not
/// thread-safe; use one reader per thread.
/// Lifetime: `folder` and `manifest` must outlive this object.
class ChunkReader {
 public:
  /// `cached_pieces` is the number of partly used pieces that are cached, so
  /// that reading the rows of a column shard does not read the same piece
  /// again.
  ChunkReader(
      const Folder& folder,
      const Manifest& manifest,
      int64_t cached_pieces = 4);
  ChunkReader(ChunkReader&&) noexcept;
  ~ChunkReader();

  /// Copies bytes [begin, end) of `chunk`, relative to its start, to `out`,
  /// which has that size. Pieces that lie entirely inside the range are read
  /// directly into `out`.
  /// Throws: CheckpointError naming folder, file, tensor, offset and both
  /// hashes if the data is damaged. `out` is then undefined.
  void read(
      const std::string& tensor,
      const Chunk& chunk,
      int64_t begin,
      int64_t end,
      std::span<std::byte> out);

  /// Copies the box of `tensor` at `offset` with `shape` to `out`, row-major,
  /// from all chunks that overlap it. Reads nothing else.
  /// Throws: like read(); CheckpointError if the tensor does not exist.
  void read_box(
      const std::string& tensor,
      const std::vector<int64_t>& offset,
      const std::vector<int64_t>& shape,
      std::span<std::byte> out);

  /// Returns the bytes read from files, including headers.
  int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::checkpoint
