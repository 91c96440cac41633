#pragma once

// What kernels.cu needs beside CUDA's headers to be compiled for the CPU: a
// grid of one thread, and the conversions that CUDA has on the device alone.

#include <cuda_runtime_api.h>

namespace weft::cuda {

struct OneThread {
  unsigned x;
};
inline constexpr OneThread gridDim{1};
inline constexpr OneThread blockDim{1};
inline constexpr OneThread blockIdx{0};
inline constexpr OneThread threadIdx{0};

inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

} // namespace weft::cuda

#define cudaGetLastError() cudaSuccess
