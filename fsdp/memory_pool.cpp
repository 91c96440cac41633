#include "fsdp/memory_pool.h"

#include <algorithm>

namespace weft::fsdp {

at::DataPtr MemoryPool::take(size_t bytes, c10::Device device) {
  bytes_in_use_ += bytes;
  peak_bytes_in_use_ = std::max(peak_bytes_in_use_, bytes_in_use_);
  // The last that was given back is the likeliest to be in a cache.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].first == bytes && free_[i].second.device() == device) {
      auto memory = std::move(free_[i].second);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      free_bytes_ -= bytes;
      return memory;
    }
  }
  // Room for what is about to be new.
  while (!free_.empty() && free_bytes_ + bytes_in_use_ > peak_bytes_in_use_) {
    free_bytes_ -= free_.front().first;
    free_.erase(free_.begin());
  }
  return c10::GetAllocator(device.type())->allocate(bytes);
}

void MemoryPool::give(at::DataPtr memory, size_t bytes) {
  bytes_in_use_ -= bytes;
  free_.emplace_back(bytes, std::move(memory));
  free_bytes_ += bytes;
}

} // namespace weft::fsdp
