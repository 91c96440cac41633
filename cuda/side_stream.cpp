#include "cuda/side_stream.h"

#include <utility>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

// Note [Side streams]
// ~~~~~~~~~~~~~~~~~~~
// A side stream waits for a group's operations one after another and calls
// host functions in between. It is the group's own and not one of libtorch's
// pool: NCCL's streams come from that pool, and one group's operations must
// never wait for another's, which may be in another order on another rank.

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
  // What it still has to call is called: CUDA frees the stream after that.
  ~SideStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  c10::cuda::CUDAStream get() const {
    return c10::cuda::getStreamFromExternal(stream_, device_);
  }

 private:
  c10::DeviceIndex device_;
  cudaStream_t stream_ = nullptr;
};

// On a thread of the driver's, where CUDA must not be called.
void CUDART_CB run(void* data) {
  const std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
  try {
    (*callback)();
  } catch (...) { // Nobody is there to be told.
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
  work.synchronize(); // The current stream waits, not the host.
  auto owned = std::make_unique<Callback>(std::move(callback));
  C10_CUDA_CHECK(cudaLaunchHostFunc(stream.stream(), run, owned.get()));
  static_cast<void>(owned.release());
}

} // namespace weft::cuda
