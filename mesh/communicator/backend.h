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

namespace weft::mesh {

/// Who is in a group, and which of them this rank is.
struct GroupMembers {
  std::string name;
  /// This rank's position in `ranks`.
  int64_t rank = 0;
  /// World ranks, in group order.
  std::vector<int64_t> ranks;
  /// How long one collective may take.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// A backend's operation under way.
class BackendWork {
 public:
  virtual ~BackendWork() = default;
  /// Blocks until the outputs hold the result. Called once at most.
  /// Throws: any std::exception if the operation failed.
  virtual void wait() = 0;
  /// Whether wait() has no message left to wait for.
  virtual bool is_completed() const = 0;
  /// Has `callback` called, from any thread, when the operation is over. False
  /// if it is over only in wait(): then nothing is called.
  virtual bool when_completed(std::function<void()> callback) = 0;
  /// wait() does not block: it orders this thread's device stream behind the
  /// operation.
  virtual bool is_on_device() const { return false; }
};

/// How a group's messages travel. Every tensor is 1-D and contiguous, all of
/// one call have one dtype. Methods start the operation; null means that it is
/// complete. Lifetime: a BackendWork keeps its tensors alive.
/// Collective: every method but abort, over the group.
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

  /// What all ranks must call next, hashed: a backend that can see whether the
  /// others do says so instead of mixing up messages.
  virtual void announce(uint64_t identity) { identity_ = identity; }

  virtual std::string_view kind() const = 0;
  virtual bool supports(c10::DeviceType device) const = 0;

  virtual std::unique_ptr<BackendWork> all_reduce(
      const at::Tensor& tensor,
      ReduceOp op) = 0;
  /// output receives counts[r] elements of every rank r, in rank order.
  virtual std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) = 0;
  /// input holds counts[r] elements for every rank r, in rank order.
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
  /// Waits until all ranks have announced the same, where a collective that
  /// ranks call differently would not say so by itself. Null: it does.
  virtual std::unique_ptr<BackendWork> agree() { return nullptr; }

  /// Makes what is under way fail soon. Called from any thread.
  virtual void abort() noexcept = 0;

  /// Why something that was waited for on a device has no result after all;
  /// empty if nothing is known of that.
  virtual std::string failure() const { return {}; }

 protected:
  uint64_t identity() const { return identity_; }

 private:
  GroupMembers members_;
  std::atomic<uint64_t> identity_ = 0;
};

} // namespace weft::mesh
