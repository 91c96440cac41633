#include "fsdp/memory_pool.h"

#include <algorithm>

#include <c10/util/accumulate.h>
#include <c10/util/strides.h>
#include <torch/torch.h>

namespace weft::fsdp {

at::DataPtr MemoryPool::take(int64_t bytes, c10::Device device) {
  const int64_t in_use = bytes_in_use_ + bytes;
  const int64_t peak = std::max(peak_bytes_in_use_, in_use);
  const auto count = [&] {
    bytes_in_use_ = in_use;
    peak_bytes_in_use_ = peak;
  };
  // The most recently returned memory is the likeliest to be in a cache.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].first == bytes && free_[i].second.device() == device) {
      auto memory = std::move(free_[i].second);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      free_bytes_ -= bytes;
      count();
      return memory;
    }
  }
  // Frees unused memory, so that new memory does not raise the peak.
  while (!free_.empty() && free_bytes_ + in_use > peak) {
    free_bytes_ -= free_.front().first;
    free_.erase(free_.begin());
  }
  auto memory =
      c10::GetAllocator(device.type())->allocate(static_cast<size_t>(bytes));
  count(); // Only after allocate(), which may throw.
  return memory;
}

at::Tensor MemoryPool::take_tensor(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  const int64_t bytes = c10::multiply_integers(sizes) *
                        static_cast<int64_t>(options.dtype().itemsize());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      static_cast<size_t>(bytes),
      take(bytes, options.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  return tensor_in(
      std::move(storage), sizes, c10::contiguous_strides(sizes), options);
}

// Builds the tensor without set_(), which tries to resize the storage on the
// meta device.
at::Tensor tensor_in(
    c10::Storage storage,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    const at::TensorOptions& options) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(options.computeDispatchKey()),
      options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void MemoryPool::give_tensor(at::Tensor&& tensor) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  give(storage.set_data_ptr(at::DataPtr(nullptr, tensor.device())), bytes);
  tensor = at::Tensor();
}

void MemoryPool::give(at::DataPtr memory, int64_t bytes) {
  bytes_in_use_ -= bytes;
  free_.emplace_back(bytes, std::move(memory));
  free_bytes_ += bytes;
}

} // namespace weft::fsdp
