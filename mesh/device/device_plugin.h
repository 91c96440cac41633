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

/// The group that a device library connects.
struct DeviceGroup {
  /// The store. No other group uses its keys.
  c10::intrusive_ptr<c10d::Store> store;
  /// The group's name, unique in the world.
  std::string name;
  int64_t rank = 0;
  int64_t size = 1;
  /// The timeout of one collective.
  std::chrono::milliseconds timeout{0};
  int64_t device = 0;
};

/// This rank's box of a full tensor, to be filled with random numbers. See
/// dtensor/random/random.h.
struct RandomFill {
  c10::IntArrayRef offset;
  c10::IntArrayRef global_sizes;
  uint64_t seed = 0;
  uint64_t stream = 0;
  /// Draws N(0, 1) instead of U[0, 1), then multiplies by `scale` and adds
  /// `shift`.
  bool is_normal = false;
  double shift = 0;
  double scale = 1;
};

/// This rank's part of rows of logits [rows, columns], and the class of each
/// row. See dtensor/kernels/gpu_row_loss.h.
struct ClassLogits {
  at::Tensor logits;
  at::Tensor target;
  /// The class of the first column, and the number of all classes.
  int64_t first_class = 0;
  int64_t classes = 0;
  int64_t ignore_index = 0;
};

/// The interface of a device library (libweft_cuda.so), which exports a
/// function kDevicePluginEntry that returns a pointer to it. See Note [Device
/// library].
struct DevicePlugin {
  /// The version of the interface. It is raised with every change of this
  /// struct or of a type in it.
  static constexpr uint32_t kAbi = 3;

  /// The first member in every version, of this size.
  uint32_t abi = 0;
  /// The versions of weft and libtorch that the library was built with.
  const char* weft_version = nullptr;
  const char* libtorch_version = nullptr;

  /// Returns why this machine cannot be used, as a sentence. Empty if it can.
  std::string (*unusable_reason)() = nullptr;
  int64_t (*device_count)() = nullptr;
  /// Returns the device's name: "NVIDIA H100 80GB HBM3".
  std::string (*device_name)(int64_t device) = nullptr;
  /// Makes `device` the current device of this thread.
  void (*use_device)(int64_t device) = nullptr;
  /// Returns the peak number of bytes of tensors on `device`.
  int64_t (*peak_bytes)(int64_t device) = nullptr;

  /// Connects the group's members.
  /// Collective: the members; blocks.
  c10::intrusive_ptr<c10d::Backend> (*make_group)(const DeviceGroup& group) =
      nullptr;
  /// Creates a stream of `device` for one group. It runs no kernels:
  /// call_after() uses it to wait for the group's operations.
  std::shared_ptr<void> (*make_side_stream)(int64_t device) = nullptr;
  /// Calls `callback` from any thread when `work`, and everything that
  /// `side_stream` waited for before, is complete. `callback` must not use the
  /// device. Never blocks.
  void (*call_after)(
      c10d::Work& work,
      const std::shared_ptr<void>& side_stream,
      std::function<void()> callback) = nullptr;

  // Kernels. False if there is none for this dtype, these sizes, or at all (a
  // library built without the device's compiler): then nothing was done.

  /// Like reduce_rows() in mesh/communicator/reduction.h.
  bool (*reduce_rows)(
      const at::Tensor& output,
      const at::Tensor& parts,
      ReduceOp op) = nullptr;
  /// Fills `local`, which is contiguous and has the sizes of the box.
  bool (*fill_random)(const at::Tensor& local, const RandomFill& fill) =
      nullptr;
  /// Like the op weft::swiglu of dtensor/fused/swiglu.cpp.
  bool (*swiglu)(
      const at::Tensor& output,
      const at::Tensor& gate,
      const at::Tensor& up) = nullptr;
  /// Its gradients.
  bool (*swiglu_backward)(
      const at::Tensor& gate_grad,
      const at::Tensor& up_grad,
      const at::Tensor& grad,
      const at::Tensor& gate,
      const at::Tensor& up) = nullptr;
  /// Like the op weft::rotary_embedding of dtensor/fused/rotary_embedding.cpp,
  /// of x [B, H, T, d].
  bool (*rotary_embedding)(
      const at::Tensor& output,
      const at::Tensor& x,
      const at::Tensor& cos,
      const at::Tensor& sin,
      bool transposed) = nullptr;
  /// Computes three numbers per row, of float (double for logits of double):
  /// the maximum m of the logits, the sum of exp(logits - m), and the logit of
  /// the target, 0 if it is not here or ignored. Shape: statistics [3 * rows].
  bool (*class_statistics)(
      const at::Tensor& statistics,
      const ClassLogits& part) = nullptr;
  /// Computes the gradient of the logits from those of each row's loss and of
  /// its log_sum, which may be undefined.
  bool (*class_gradient)(
      const at::Tensor& grad,
      const ClassLogits& part,
      const at::Tensor& log_sum,
      const at::Tensor& loss_grad,
      const at::Tensor& log_sum_grad) = nullptr;
};

constexpr const char* kDevicePluginEntry = "weft_device_plugin";

/// Opens a device library and checks that it matches this program.
/// Lifetime: of the process.
/// Throws: UsageError with the mismatch and how to resolve it.
const DevicePlugin& load_device_plugin(const std::string& path);

/// Returns libweft_cuda.so. The first call opens and checks it, and its result
/// is final for the process.
/// Throws: UsageError if there is no library, or this machine has no CUDA
/// device.
const DevicePlugin& cuda_plugin();

/// Returns the same, or nullptr where cuda_plugin() throws.
const DevicePlugin* find_cuda_plugin();

/// Returns the paths that cuda_plugin() tries, in order: only WEFT_CUDA_LIBRARY
/// if it is set; otherwise the program's folder, ../lib of it, and the loader's
/// search path.
std::vector<std::string> cuda_library_candidates();

} // namespace weft::mesh
