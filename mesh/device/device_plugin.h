#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/communicator.h"

namespace c10d {
class Backend;
class Store;
class Work;
} // namespace c10d

namespace weft::mesh {

/// A group that a device library is to connect.
struct DeviceGroup {
  /// Its keys are this group's alone.
  c10::intrusive_ptr<c10d::Store> store;
  /// Unique in the world.
  std::string name;
  int64_t rank = 0;
  int64_t size = 1;
  /// How long one collective may take.
  std::chrono::milliseconds timeout{0};
  int64_t device = 0;
};

/// This rank's box of a whole tensor, to be filled with random numbers: what
/// dtensor/random/random.h says of them.
struct RandomFill {
  c10::IntArrayRef offset;
  c10::IntArrayRef global_sizes;
  uint64_t seed = 0;
  uint64_t stream = 0;
  /// N(0, 1) instead of U[0, 1), then times `scale` plus `shift`.
  bool is_normal = false;
  double shift = 0;
  double scale = 1;
};

/// What a device library (libweft_cuda.so) exports: one function named
/// kDevicePluginEntry that returns a pointer to this. See Note [Device
/// library].
struct DevicePlugin {
  /// Raised whenever this struct or a type in it changes.
  static constexpr uint32_t kAbi = 1;

  /// First, at this size, in every version.
  uint32_t abi = 0;
  /// Of the weft and the libtorch that it was built with.
  const char* weft_version = nullptr;
  const char* libtorch_version = nullptr;

  /// Why this machine cannot be used, in a sentence; empty if it can.
  std::string (*unusable_reason)() = nullptr;
  int64_t (*device_count)() = nullptr;
  /// "NVIDIA H100 80GB HBM3".
  std::string (*device_name)(int64_t device) = nullptr;
  /// Makes `device` this thread's current one.
  void (*use_device)(int64_t device) = nullptr;
  /// The most bytes that tensors on `device` have held at once.
  int64_t (*peak_bytes)(int64_t device) = nullptr;

  /// Connects the group's members with each other.
  /// Collective: the members; blocks.
  c10::intrusive_ptr<c10d::Backend> (*make_group)(const DeviceGroup& group) =
      nullptr;
  /// A stream of `device` on which nothing is computed, for one group.
  std::shared_ptr<void> (*make_side_stream)(int64_t device) = nullptr;
  /// Has `callback`, which may not use the device, called from any thread once
  /// `work` and what `side_stream` had to wait for before are over. Never
  /// blocks.
  void (*call_after)(
      c10d::Work& work,
      const std::shared_ptr<void>& side_stream,
      std::function<void()> callback) = nullptr;

  // Kernels. False if there is none for this dtype, these sizes, or at all (a
  // library built without the device's compiler): then nothing was done.

  /// As mesh/communicator/reduction.h.
  bool (*reduce_rows)(
      const at::Tensor& output,
      const at::Tensor& parts,
      ReduceOp op) = nullptr;
  /// `local` is contiguous and has the box's sizes.
  bool (*fill_random)(const at::Tensor& local, const RandomFill& fill) =
      nullptr;
};

constexpr const char* kDevicePluginEntry = "weft_device_plugin";

/// Opens a device library and checks that it fits this program.
/// Lifetime: of the process.
/// Throws: UsageError that says what does not fit, and the way out.
const DevicePlugin& load_device_plugin(const std::string& path);

/// libweft_cuda.so, opened and looked at by the first call, whose outcome
/// stands for the process.
/// Throws: UsageError if there is none, or this machine has no CUDA device.
const DevicePlugin& cuda_plugin();

/// Where cuda_plugin() looks, in this order: WEFT_CUDA_LIBRARY alone if set;
/// else beside the program, in ../lib of it, and wherever the loader looks.
std::vector<std::string> cuda_library_candidates();

} // namespace weft::mesh
