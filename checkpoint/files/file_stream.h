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

/// Writes a new file from its first byte to its last.
///
/// What has to be on the disk goes there past the page cache where the file
/// system allows it (O_DIRECT), from two buffers in turn: while one is written
/// the other is filled. A disk takes that several times faster than pages that
/// a sync chases through the cache, and the cache keeps what it had.
class FileStream {
 public:
  /// Reserves `bytes` on the disk: a full one is found before the first write.
  /// `file` outlives this; no `rate_limiter`: as fast as it goes.
  /// Throws: std::system_error with path and errno, as all of its methods.
  FileStream(
      const File& file,
      int64_t bytes,
      bool sync,
      RateLimiter* rate_limiter);
  ~FileStream();
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  /// `part` must stay as it is until finish().
  void append(std::span<const std::byte> part);
  /// All is with the kernel when it returns, or on the disk with `sync`.
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
