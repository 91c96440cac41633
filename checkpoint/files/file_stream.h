#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/rate_limiter.h"

namespace weft::checkpoint {

/// Writes a new file sequentially.
/// With `sync`, the data bypasses the page cache where the file system supports
/// it (O_DIRECT), through two buffers: one is filled while the other is
/// written. This is several times faster than a write through the page cache
/// with a sync at the end, and does not evict other pages from the cache.
class FileStream {
 public:
  /// Reserves `bytes` on the disk, so that a full disk is detected before the
  /// first write. A null `rate_limiter` means no limit.
  /// Lifetime: `file` must outlive this object.
  /// Throws, in every method: std::system_error with path and errno.
  FileStream(
      const File& file,
      int64_t bytes,
      bool sync,
      RateLimiter* rate_limiter);
  ~FileStream();
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  /// Appends `part`, which must not change until finish().
  void append(std::span<const std::byte> part);
  /// Blocks until all data is with the kernel, or on the disk with `sync`.
  void finish();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Buffer = std::unique_ptr<std::byte, Free>;

  void append_direct(std::span<const std::byte> part);
  void write_buffer();
  void wait_for_disk();
  void write_parts();
  void acquire(int64_t bytes);
  void end_direct();

  const File& file_;
  bool sync_;
  RateLimiter* rate_limiter_;
  int64_t position_ = 0;
  // Past the page cache.
  bool is_direct_ = false;
  Buffer filling_;
  Buffer writing_;
  int64_t filled_ = 0;
  std::future<void> under_way_;
  // Through it: parts that wait to be written together.
  std::vector<std::span<const std::byte>> parts_;
  int64_t waiting_ = 0;
};

} // namespace weft::checkpoint
