#include "checkpoint/files/file_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

namespace weft::checkpoint {
namespace {

// Large enough for few system calls, and small enough that hashed bytes are
// still in the processor's cache when they are copied.
constexpr int64_t kBatchBytes = 4 << 20;
constexpr size_t kBatchParts = 512;
// A multiple of the block size of the usual disks.
constexpr int64_t kDiskBlockBytes = 4096;
// The size from which O_DIRECT is used. Smaller files gain little from it.
constexpr int64_t kMinDirectBytes = 1 << 20;

// Switches O_DIRECT on or off. Returns false if the file system does not
// support it.
bool set_direct(const File& file, bool direct) {
  const int flags = ::fcntl(file.fd(), F_GETFL);
  return flags >= 0 && ::fcntl(
                           file.fd(),
                           F_SETFL,
                           direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

std::byte* new_buffer() {
  void* memory = std::aligned_alloc(kDiskBlockBytes, kBatchBytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(memory);
}

// Writes again without O_DIRECT if the kernel rejects it. Some file systems
// require larger blocks, and a short write can end inside a block.
void write_direct(
    const File& file,
    int64_t position,
    std::span<const std::byte> bytes) {
  const std::array parts = {bytes};
  try {
    file.write_at(position, parts);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::invalid_argument ||
        !set_direct(file, false)) {
      throw;
    }
    file.write_at(position, parts);
  }
}

} // namespace

void FileStream::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

FileStream::FileStream(
    const File& file,
    int64_t bytes,
    bool sync,
    RateLimiter* rate_limiter)
    : file_(file), sync_(sync), rate_limiter_(rate_limiter) {
  file_.reserve(bytes);
  if (sync_ && bytes >= kMinDirectBytes && set_direct(file_, true)) {
    is_direct_ = true;
    filling_.reset(new_buffer());
    writing_.reset(new_buffer());
  }
}

FileStream::~FileStream() {
  if (under_way_.valid()) {
    under_way_.wait();
  }
}

void FileStream::append(std::span<const std::byte> part) {
  if (is_direct_) {
    append_direct(part);
    return;
  }
  parts_.push_back(part);
  waiting_ += static_cast<int64_t>(part.size());
  if (waiting_ >= kBatchBytes || parts_.size() >= kBatchParts) {
    write_parts();
  }
}

void FileStream::append_direct(std::span<const std::byte> part) {
  while (!part.empty()) {
    const auto size =
        std::min(part.size(), static_cast<size_t>(kBatchBytes - filled_));
    std::memcpy(filling_.get() + filled_, part.data(), size);
    filled_ += static_cast<int64_t>(size);
    part = part.subspan(size);
    if (filled_ == kBatchBytes) {
      write_buffer();
    }
  }
}

// Starts writing the full buffer. The caller fills the other one meanwhile.
void FileStream::write_buffer() {
  wait_for_disk();
  acquire(filled_);
  std::swap(filling_, writing_);
  const std::span<const std::byte> bytes(
      writing_.get(), static_cast<size_t>(filled_));
  under_way_ =
      std::async(std::launch::async, [this, bytes, position = position_] {
        write_direct(file_, position, bytes);
      });
  position_ += filled_;
  filled_ = 0;
}

void FileStream::wait_for_disk() {
  if (under_way_.valid()) {
    under_way_.get();
  }
}

void FileStream::write_parts() {
  acquire(waiting_);
  file_.write_at(position_, parts_);
  position_ += waiting_;
  waiting_ = 0;
  parts_.clear();
}

void FileStream::acquire(int64_t bytes) {
  if (rate_limiter_ != nullptr) {
    rate_limiter_->acquire(bytes);
  }
}

// Writes the complete blocks with O_DIRECT and the rest through the page cache.
void FileStream::end_direct() {
  const auto rest = filled_ % kDiskBlockBytes;
  filled_ -= rest;
  const auto blocks = filled_;
  if (blocks > 0) {
    write_buffer();
  }
  wait_for_disk();
  if (rest > 0) {
    set_direct(file_, false);
    auto* memory = blocks > 0 ? writing_.get() : filling_.get();
    const std::array tail = {
        std::span<const std::byte>(memory + blocks, static_cast<size_t>(rest))};
    file_.write_at(position_, tail);
    position_ += rest;
  }
}

void FileStream::finish() {
  if (is_direct_) {
    end_direct();
  } else {
    write_parts();
  }
  if (sync_) {
    file_.sync();
  }
}

} // namespace weft::checkpoint
