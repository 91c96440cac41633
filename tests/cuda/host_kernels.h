#pragma once

// What the kernels need beside CUDA's headers to be compiled for the CPU: a
// grid of a few blocks, one after the other, whose threads are the CPU's, and
// the functions that CUDA has on the device alone.

#include <barrier>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

namespace weft::cuda {

struct OneDim {
  unsigned x;
};
inline constexpr OneDim gridDim{3};
inline constexpr OneDim blockDim{4};
inline thread_local OneDim blockIdx{0};
inline thread_local OneDim threadIdx{0};

inline std::barrier<>& block_barrier() {
  static std::barrier<> barrier(blockDim.x);
  return barrier;
}
inline void __syncthreads() {
  block_barrier().arrive_and_wait();
}

/// Calls `run` on each thread of each block.
template <class Run>
void launch_on_host(const Run& run) {
  for (unsigned block = 0; block < gridDim.x; ++block) {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < blockDim.x; ++i) {
      threads.emplace_back([&run, block, i] {
        blockIdx.x = block;
        threadIdx.x = i;
        run();
      });
    }
  }
}

inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

} // namespace weft::cuda

// One block runs at a time.
#undef __shared__
#define __shared__ static
#define cudaGetLastError() cudaSuccess
