#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"

namespace weft::data_parallel {

/// A bucket of gradients as a comm hook sees it.
struct GradBucket {
  /// The position in the order of reduction, identical on all ranks.
  size_t index = 0;
  /// True for the last bucket of this backward. False for all buckets of a
  /// fully sharded model.
  bool is_last = false;
  /// All gradients of the bucket, concatenated. Shape [n], contiguous.
  at::Tensor buffer;
  /// Views of `buffer` with the local shapes of the parameters.
  std::vector<at::Tensor> gradients;
  /// The local tensors of the parameters, detached.
  std::vector<at::Tensor> parameters;
  /// The names of the parameters.
  std::vector<std::string> names;
  /// The group of replicas over which to reduce.
  mesh::Communicator group;
};

/// A future value. Functions added by then() run in wait() on the waiting
/// thread, so that a second round of collectives has the same order on all
/// ranks.
class BucketFuture {
 public:
  /// Creates a future that is complete.
  explicit BucketFuture(at::Tensor value);
  /// Creates a future with `value`, complete when `work` is.
  BucketFuture(mesh::Work work, at::Tensor value);
  /// Creates a future whose value `wait` returns.
  explicit BucketFuture(std::function<at::Tensor()> wait);

  /// Returns a future for the result of `next` on the value.
  BucketFuture then(std::function<at::Tensor(const at::Tensor&)> next) &&;

  /// Blocks and returns the value. Called once.
  at::Tensor wait();

 private:
  std::function<at::Tensor()> wait_;
};

/// Replaces the reduction of buckets, e.g. by one that sends fewer bytes. Hooks
/// can wrap other hooks.
/// Source: torch/nn/parallel/distributed.py, register_comm_hook;
/// torch/csrc/distributed/c10d/comm.hpp.
class CommHook {
 public:
  /// The hook's tensors on this rank by name, e.g. PowerSGD's errors.
  using State = std::map<std::string, at::Tensor>;

  CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;
  virtual ~CommHook() = default;

  /// The name in messages, e.g. "powerSGD_hook".
  virtual std::string name() const = 0;

  /// Returns true if the result is already divided by the size of the group. If
  /// false, DDP divides it.
  virtual bool divides() const = 0;

  /// Starts the reduction of a bucket. The result has the shape and dtype of
  /// `bucket.buffer`, which the hook may overwrite.
  /// Collective: over bucket.group, in the order of buckets, including
  /// collectives of the future.
  virtual BucketFuture run(const GradBucket& bucket) = 0;

  /// Called when buckets were rebuilt. State of single buckets is invalid then.
  virtual void on_rebuilt_buckets() {}

  /// Returns true if register_comm_hook() may run the hook on a small bucket to
  /// verify divides(). False for hooks that store what they see.
  virtual bool can_be_tried() const { return true; }

  /// Returns all state that a resumed run needs for identical results.
  /// on_rebuilt_buckets() is not called if the layout of buckets was resumed
  /// too.
  virtual State state_dict() const { return {}; }
  /// Throws: c10::ValueError naming an entry that is missing or does not match.
  virtual void load_state_dict(const State& state);
};

/// Runs a hook on four ones per rank and checks that it returns what divides()
/// declares.
/// Collective: all ranks of `group`; blocks.
/// Throws: c10::ValueError if it does not.
void check_declaration(
    CommHook& hook,
    const mesh::Communicator& group,
    c10::Device device);

/// Creates a hook from a function.
std::shared_ptr<CommHook> make_comm_hook(
    std::string name,
    bool divides,
    std::function<BucketFuture(const GradBucket&)> run);

} // namespace weft::data_parallel
