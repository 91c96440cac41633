#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"
#include "mesh/error/failure.h"

namespace weft::mesh {

/// The members of a group and this rank's position among them.
struct GroupMembers {
  std::string name;
  /// This rank's position in `ranks`.
  int64_t rank = 0;
  /// World ranks, in group order.
  std::vector<int64_t> ranks;
  /// The timeout of one collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// A running operation of a backend.
class BackendWork {
 public:
  virtual ~BackendWork() = default;
  /// Blocks until the outputs hold the result. Called at most once.
  /// Throws: any std::exception if the operation failed.
  virtual void wait() = 0;
  /// Returns true if wait() would not block on a message.
  virtual bool is_completed() const = 0;
  /// Calls `callback` from any thread when the operation is complete. Returns
  /// false, and never calls it, if the operation completes only inside wait().
  virtual bool when_completed(std::function<void()> callback) = 0;
  /// Returns true if wait() does not block but orders this thread's device
  /// stream after the operation.
  virtual bool is_on_device() const { return false; }
};

/// The transport of a group's messages. All tensors are 1-D and contiguous, and
/// those of one call have one dtype. Methods start the operation; a null result
/// means that it is already complete.
/// Lifetime: a BackendWork keeps its tensors alive.
/// Collective: every method except abort(), over the group.
class Backend {
 public:
  using Counts = std::vector<int64_t>;

  explicit Backend(GroupMembers members) : members_(std::move(members)) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  const GroupMembers& members() const { return members_; }
  int64_t rank() const { return members_.rank; }
  int64_t size() const { return static_cast<int64_t>(members_.ranks.size()); }

  /// Declares a hash of the next call, which must be identical on all ranks. A
  /// backend that can compare it reports a mismatch instead of mixing up
  /// messages.
  virtual void announce(uint64_t identity) { identity_ = identity; }

  virtual std::string_view kind() const = 0;
  virtual bool supports(c10::DeviceType device) const = 0;

  virtual std::unique_ptr<BackendWork> all_reduce(
      const at::Tensor& tensor,
      ReduceOp op) = 0;
  /// Gathers counts[r] elements of every rank r into `output`, in rank order.
  virtual std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) = 0;
  /// Reduces `input`, which has counts[r] elements for every rank r, in rank
  /// order.
  virtual std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) = 0;
  virtual std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) = 0;
  virtual std::unique_ptr<BackendWork> broadcast(
      const at::Tensor& tensor,
      int64_t root) = 0;
  virtual std::unique_ptr<BackendWork> barrier() = 0;
  /// Waits until all ranks have announced the same collective. Returns null if
  /// the backend detects mismatches itself.
  virtual std::unique_ptr<BackendWork> agree() { return nullptr; }

  /// Makes the running operations fail soon. May be called from any thread.
  virtual void abort() noexcept = 0;

  /// The error of a device collective that failed after wait() returned. Its
  /// reason is empty if none failed.
  virtual GroupFailure failure() const { return {}; }

 protected:
  uint64_t identity() const { return identity_; }

 private:
  GroupMembers members_;
  std::atomic<uint64_t> identity_ = 0;
};

} // namespace weft::mesh
