#include "checkpoint/save/staging.h"

#include <sys/mman.h>

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::checkpoint {
namespace {

// The alignment of each tensor in bytes, for vector instructions and DMA.
constexpr int64_t kAlignment = 64;

int64_t rounded_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Allocates pageable memory, in huge pages if available, so that the first copy
// causes few page faults.
at::Tensor pageable(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* memory = ::mmap(
      nullptr,
      size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  if (memory == MAP_FAILED) {
    return at::empty({bytes}, at::kByte); // throws with the size
  }
  ::madvise(memory, size, MADV_HUGEPAGE);
  return at::from_blob(
      memory,
      {bytes},
      [size](void* address) { ::munmap(address, size); },
      at::kByte);
}

void finish_copies(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& tensor : tensors) {
    const auto device = tensor.device();
    if (!device.is_cpu() &&
        std::ranges::find(devices, device) == devices.end()) {
      devices.push_back(device);
    }
  }
  return devices;
}

} // namespace

void Staging::grow(const std::vector<at::Tensor>& tensors) {
  int64_t needed = 0;
  for (const auto& tensor : tensors) {
    needed += rounded_up(static_cast<int64_t>(tensor.nbytes()));
  }
  if (bytes() >= needed) {
    return;
  }
  memory_ = at::Tensor(); // freed before the new buffer is allocated
  const bool is_cuda = std::ranges::any_of(
      devices_of(tensors), [](c10::Device device) { return device.is_cuda(); });
  memory_ =
      is_cuda ? at::empty(
                    {needed}, at::TensorOptions(at::kByte).pinned_memory(true))
              : pageable(needed);
}

void Staging::reserve(const std::vector<at::Tensor>& tensors) {
  grow(tensors);
  if (memory_.defined()) {
    memory_.zero_();
  }
}

std::vector<at::Tensor> Staging::copy(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  grow(tensors);
  std::vector<at::Tensor> copies;
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    copies.push_back(memory_.narrow(0, at, size)
                         .view(tensor.scalar_type())
                         .view(tensor.sizes()));
    copies.back().copy_(tensor, /*non_blocking=*/true);
    at += rounded_up(size);
  }
  for (const auto& device : devices_of(tensors)) {
    finish_copies(device);
  }
  return copies;
}

} // namespace weft::checkpoint
