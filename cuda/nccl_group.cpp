#include "cuda/nccl_group.h"

#include <nccl.h>

#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mesh/error/error.h"

// Note [NCCL's headers]
// ~~~~~~~~~~~~~~~~~~~~~
// ProcessGroupNCCL::Options contains NCCL's ncclConfig_t by value, which grows
// with NCCL's minor versions. Its constructor is in libtorch. If this library
// were compiled with the nccl.h of another version, it would reserve too little
// memory and libtorch would write behind it. So nccl_mismatch() compares the
// versions before an Options is created.

namespace weft::cuda {
namespace {

std::string version_text(int major, int minor) {
  return mesh::detail::concat(major, ".", minor);
}

} // namespace

std::string nccl_mismatch() {
  const auto theirs = torch::cuda::nccl::version();
  const auto their_major = static_cast<int>(theirs >> 32);
  const auto their_minor = static_cast<int>((theirs >> 16) & 0xFFFF);
  if (their_major == NCCL_MAJOR && their_minor == NCCL_MINOR) {
    return {};
  }
  return mesh::detail::concat(
      "libweft_cuda.so was built with the headers of NCCL ",
      version_text(NCCL_MAJOR, NCCL_MINOR),
      ", but this libtorch with those of NCCL ",
      version_text(their_major, their_minor),
      ". Configure again with that NCCL's headers, e.g. those of the "
      "nvidia-nccl wheel that torch asks for (docs/gpu.md).");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(
    const mesh::DeviceGroup& group) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = group.timeout;
  options->group_name = group.name;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      group.store,
      static_cast<int>(group.rank),
      static_cast<int>(group.size),
      std::move(options));
  // Connects before the first collective, so that a rank that cannot connect
  // fails at once.
  nccl->eagerConnectSingleDevice(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.device)));
  return nccl;
}

} // namespace weft::cuda
