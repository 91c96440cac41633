#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/bucket_plan.h"
#include "ddp/gradient_agreement.h"
#include "ddp/gradient_bucket.h"
#include "ddp/gradient_hooks.h"
#include "ddp/module_state.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

struct ReducerOptions {
  BucketCaps caps;
  /// After a backward .grad() is a view of a bucket; otherwise a tensor of its
  /// own, which costs a copy and the memory.
  bool gradient_as_bucket_view = true;
  /// kAvg or kSum over the replicas.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
};

/// Reduces the gradients of some parameters over the replicas while backward
/// runs. See Note [Order of reductions] and Note [Pending sums].
/// Collective: every backward that reaches a parameter, unless paused; over
/// all ranks of `dp`, and over the meshes of the parameters whose gradients
/// are pending sums. What fails there comes out of backward().
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `parameters` require gradients and have their values. While `paused` is
  /// not 0, backward passes only add to .grad().
  static std::shared_ptr<Reducer> create(
      std::vector<NamedTensor> parameters,
      const mesh::DeviceMesh& dp,
      const ReducerOptions& options,
      std::shared_ptr<const std::atomic<int>> paused);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// Tells the reducer of an output of the model. So the end of the outermost
  /// backward ends a reduction, also when gradients arrive in nested ones.
  void watch(const at::Tensor& output);

  /// Forgets a backward that failed half way.
  void reset();

  /// Names of the parameters of each bucket, in the order of their reduction:
  /// planned from the reversed order of parameters until the first backward,
  /// and from the order of that backward from then on.
  std::vector<std::vector<std::string>> bucket_names() const;

  /// Makes the first backward's buckets these, an earlier bucket_names() of
  /// the same parameters on the same mesh, instead of planned ones.
  /// Throws: c10::ValueError for an unknown or repeated name, or once there are
  /// buckets; backward() throws if the layout does not fit its gradients.
  void set_bucket_layout(const std::vector<std::vector<std::string>>& layout);

 private:
  struct Parameter {
    NamedTensor state;
    /// Where a gradient that is a pending sum lies.
    std::optional<dtensor::DTensorSpec> pending;
    /// Its place once buckets exist; none if there is nothing to reduce.
    std::optional<size_t> bucket;
    size_t slot = 0;
    bool is_ready = false;
  };

  Reducer(
      std::vector<NamedTensor> parameters,
      const mesh::DeviceMesh& dp,
      const ReducerOptions& options,
      std::shared_ptr<const std::atomic<int>> paused);

  void on_gradient(size_t index);
  void finish_backward();

  // In reducer_buckets.cpp: which bucket a gradient goes to, and how.
  std::vector<std::vector<size_t>> plan(const std::vector<size_t>& order) const;
  void make_buckets();
  using Plan = std::vector<std::vector<size_t>>;
  void check_layout(const Plan& layout, const Plan& planned) const;
  int64_t kind_of_bucket(const std::vector<size_t>& bucket) const;
  /// Brings .grad() to its place, and into its bucket if it has one.
  void put(const Parameter& parameter, double divisor);
  void place(const Parameter& parameter) const;
  void publish();

  void end_backward_here();
  void launch(size_t bucket);
  void launch_full_buckets();
  void reduce_pending_sums(size_t bucket);
  void reduce_remaining();
  bool is_any_missing() const;
  void lower_flag();
  void clear();
  double divisor() const;
  Replicas replicas() const;

  mesh::DeviceMesh dp_;
  ReducerOptions options_;
  std::shared_ptr<const std::atomic<int>> paused_;
  std::vector<Parameter> parameters_;
  std::vector<std::string> names_;
  c10::Device device_;

  mutable std::mutex mutex_;
  std::vector<GradientBucket> buckets_;
  /// Buckets before this one are reduced as soon as they are full; the others
  /// hold pending sums.
  size_t pending_begin_ = 0;
  bool has_buckets_ = false;
  /// What set_bucket_layout() was given; empty if nothing.
  Plan layout_;

  // Of the backward under way.
  std::vector<size_t> ready_;
  std::vector<size_t> waiting_for_;
  size_t launched_ = 0;
  std::vector<mesh::Work> works_;
  bool ends_here_ = false;

  /// Last: nothing is called once it is gone.
  std::unique_ptr<GradientHooks> hooks_;
};

} // namespace weft::ddp
