#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// A bucket of gradients, as a comm hook sees it.
struct GradBucket {
  /// Position in the order of reduction, the same on all ranks.
  size_t index = 0;
  /// No bucket comes after it in this backward.
  bool is_last = false;
  /// All gradients of the bucket one behind the other. Shape [n], contiguous.
  at::Tensor buffer;
  /// Views of `buffer` with the shapes of the parameters on this rank.
  std::vector<at::Tensor> gradients;
  /// What this rank holds of the parameters; no part of a graph.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  /// The replicas over which to reduce.
  mesh::Communicator group;
};

/// A value to come. What then() adds runs in wait(), on the thread that waits,
/// so that collectives of a second round are in the same order on all ranks.
class BucketFuture {
 public:
  /// A value that is there.
  explicit BucketFuture(at::Tensor value);
  /// `value` once `work` is done.
  BucketFuture(mesh::Work work, at::Tensor value);
  explicit BucketFuture(std::function<at::Tensor()> wait);

  /// What `next` makes of the value.
  BucketFuture then(std::function<at::Tensor(const at::Tensor&)> next) &&;

  /// Once only.
  at::Tensor wait();

 private:
  std::function<at::Tensor()> wait_;
};

/// Replaces the reduction of buckets, e.g. by one that moves fewer bytes. Hooks
/// that wrap others stack.
/// Source: torch/nn/parallel/distributed.py, register_comm_hook;
/// torch/csrc/distributed/c10d/comm.hpp.
class CommHook {
 public:
  /// Tensors of this rank, e.g. PowerSGD's errors, by name.
  using State = std::map<std::string, at::Tensor>;

  CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;
  virtual ~CommHook() = default;

  /// As in messages, e.g. "powerSGD_hook".
  virtual std::string name() const = 0;

  /// Whether the result is divided by the size of the group already. If not,
  /// DDP divides it.
  virtual bool divides() const = 0;

  /// Starts the reduction of a bucket; the result has the shape and dtype of
  /// `bucket.buffer`, which the hook may overwrite.
  /// Collective: over bucket.group, buckets in their order; what the future
  /// runs too.
  virtual BucketFuture run(const GradBucket& bucket) = 0;

  /// Buckets were made anew: what is kept of single buckets is void.
  virtual void on_rebuilt_buckets() {}

  /// Whether register_comm_hook() may try the hook on a small bucket, to see
  /// that divides() is true. Not for those that keep a state of what they see.
  virtual bool can_be_tried() const { return true; }

  /// Everything that a resumed run needs to go on exactly; on_rebuilt_buckets()
  /// is not called where the layout of buckets was resumed too.
  virtual State state_dict() const { return {}; }
  /// Throws: c10::ValueError naming an entry that is missing or does not fit.
  virtual void load_state_dict(const State& state);
};

/// A function as a hook.
std::shared_ptr<CommHook> make_comm_hook(
    std::string name,
    bool divides,
    std::function<BucketFuture(const GradBucket&)> run);

} // namespace weft::ddp
