// The exports of libweft_cuda.so. See Note [Device library].

#include <string>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/version.h>

#include "cuda/nccl_group.h"
#include "cuda/side_stream.h"
#include "cuda/tensor_kernels.h"
#include "mesh/device/device_plugin.h"
#include "mesh/error/error.h"

namespace weft::cuda {
namespace {

std::string cuda_version(int number) {
  return mesh::detail::concat(number / 1000, ".", number % 1000 / 10);
}

// Asks the CUDA runtime, because libtorch only reports that there is no device.
std::string device_problem() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    return {};
  }
  static_cast<void>(cudaGetLastError());
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) {
    return "no NVIDIA driver is loaded on this machine. Run on a machine that "
           "has one, or set device: cpu.";
  }
  if (error == cudaErrorInsufficientDriver) {
    return mesh::detail::concat(
        "the NVIDIA driver is for CUDA ",
        cuda_version(driver),
        ", this libtorch needs ",
        cuda_version(runtime),
        ". Update the driver, or use a torch wheel for an older CUDA.");
  }
  return mesh::detail::concat(
      "no CUDA device is visible (",
      error == cudaSuccess ? "the driver counts 0" : cudaGetErrorString(error),
      "). Check CUDA_VISIBLE_DEVICES and nvidia-smi, or set device: cpu.");
}

std::string unusable_reason() {
  std::string reason = nccl_mismatch();
  if (reason.empty()) {
    reason = device_problem();
  }
  if (reason.empty() && !at::globalContext().hasCUDA()) {
    reason =
        "libtorch counted the devices before libweft_cuda.so was loaded, and "
        "found none. Create the World before you use a device.";
  }
  return reason;
}

int64_t device_count() {
  return c10::cuda::device_count();
}

std::string device_name(int64_t device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))
      ->name;
}

void use_device(int64_t device) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
}

int64_t peak_bytes(int64_t device) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  if (!allocator->initialized()) { // The process has not used a device.
    return 0;
  }
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device))
      .allocated_bytes[kAll]
      .peak;
}

} // namespace
} // namespace weft::cuda

extern "C" const weft::mesh::DevicePlugin* weft_device_plugin() {
  namespace cuda = weft::cuda;
  static constexpr weft::mesh::DevicePlugin kPlugin{
      .abi = weft::mesh::DevicePlugin::kAbi,
      .weft_version = WEFT_VERSION,
      .libtorch_version = TORCH_VERSION,
      .unusable_reason = cuda::unusable_reason,
      .device_count = cuda::device_count,
      .device_name = cuda::device_name,
      .use_device = cuda::use_device,
      .peak_bytes = cuda::peak_bytes,
      .make_group = cuda::make_nccl_group,
      .make_side_stream = cuda::make_side_stream,
      .call_after = cuda::call_after,
      .reduce_rows = cuda::reduce_rows,
      .fill_random = cuda::fill_random,
      .swiglu = cuda::swiglu,
      .swiglu_backward = cuda::swiglu_backward,
      .rotary_embedding = cuda::rotary_embedding,
      .class_statistics = cuda::class_statistics,
      .class_gradient = cuda::class_gradient,
  };
  return &kPlugin;
}
