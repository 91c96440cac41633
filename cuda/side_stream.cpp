#include "cuda/side_stream.h"

#include <utility>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

// Note [Side streams]
// ~~~~~~~~~~~~~~~~~~~
// A side stream waits for a group's operations in order and calls host
// functions in between. Each group has its own stream and does not take one
// from libtorch's pool, from which NCCL's streams come. The operations of one
// group must never wait for those of another, because another rank may start
// them in another order.

namespace weft::cuda {
namespace {

using Callback = std::function<void()>;

class SideStream {
 public:
  explicit SideStream(c10::DeviceIndex device) : device_(device) {
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  // CUDA frees the stream after the callbacks that are still queued.
  ~SideStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  c10::cuda::CUDAStream get() const {
    return c10::cuda::getStreamFromExternal(stream_, device_);
  }

 private:
  c10::DeviceIndex device_;
  cudaStream_t stream_ = nullptr;
};

// Runs on a thread of the CUDA driver, where CUDA calls are forbidden.
void CUDART_CB run(void* data) {
  const std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
  try {
    (*callback)();
  } catch (...) {
    // A driver thread has no caller to which the error could go.
  }
}

} // namespace

std::shared_ptr<void> make_side_stream(int64_t device) {
  return std::make_shared<SideStream>(static_cast<c10::DeviceIndex>(device));
}

void call_after(
    c10d::Work& work,
    const std::shared_ptr<void>& side_stream,
    std::function<void()> callback) {
  const auto stream = static_cast<SideStream*>(side_stream.get())->get();
  const c10::cuda::CUDAStreamGuard guard(stream);
  // The current stream waits for the work, the host does not.
  work.synchronize();
  auto owned = std::make_unique<Callback>(std::move(callback));
  C10_CUDA_CHECK(cudaLaunchHostFunc(stream.stream(), run, owned.get()));
  static_cast<void>(owned.release());
}

} // namespace weft::cuda
