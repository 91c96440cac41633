#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "data_parallel/parameters/gradient_hooks.h"
#include "data_parallel/parameters/module_state.h"
#include "data_parallel/parameters/parameter_cast.h"
#include "ddp/reducer/bucket_plan.h"
#include "ddp/reducer/gradient_agreement.h"
#include "ddp/reducer/gradient_bucket.h"
#include "ddp/reducer/join_reducer_hook.h"
#include "ddp/reducer/local_norms.h"
#include "ddp/reducer/options.h"
#include "ddp/reducer/runtime_statistics.h"
#include "ddp/reducer/unused_parameters.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

namespace weft::ddp {

/// The ranks over which gradients are reduced, and the divisor of their sum.
struct ReductionGroup {
  mesh::Communicator group;
  double divisor = 1.0;
};

/// A parameter that the reducer manages.
struct ReducedParameter {
  data_parallel::NamedTensor state;
  /// The modules that have it, e.g. "layers.0.wq (Linear)".
  std::string modules = {};
  /// The index of its group. 0 is the replicas' group.
  size_t group = 0;
  /// True if its gradient waits for that of
  /// DistributedDataParallelOptions::param_to_hook_all_reduce.
  bool is_delayed = false;
  /// The dtype in which its gradient is reduced.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// True if it is computed with in low precision.
  bool is_cast = false;
};

struct ReducerConfig {
  BucketCaps caps;
  DistributedDataParallelOptions options;
  std::vector<ReductionGroup> groups;
  /// The parameters that are cast. Null if there are none.
  std::shared_ptr<data_parallel::ParameterCast> cast;
};

/// Reduces the gradients of some parameters over the replicas during backward.
/// See Note [Order of reductions] and Note [Partial sums].
/// Collective: every backward that reaches a parameter, unless paused; over all
/// ranks of `dp`, and over the meshes of parameters whose gradients are
/// Partial. backward() throws its errors.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `parameters` require gradients and have values. While `paused` is not 0,
  /// backward passes only accumulate .grad().
  static std::shared_ptr<Reducer> create(
      std::vector<ReducedParameter> parameters,
      const mesh::DeviceMesh& dp,
      ReducerConfig config,
      std::shared_ptr<const std::atomic<int>> paused);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// Called before a forward: clears the state of a failed backward, and casts
  /// the parameters of `cast`. `needs_backward` means that gradients will be
  /// computed.
  void begin_forward(bool needs_backward);
  /// Reports an error that only this rank detected. backward() throws `error`
  /// here and a generic error on the other ranks.
  void report(std::exception_ptr error);
  /// Called after a forward with the model's outputs, so that the end of the
  /// outermost backward ends a reduction, even if gradients arrive in nested
  /// ones, and so that unused parameters are found. `is_shared` means that all
  /// replicas run this forward, so that it may communicate.
  void end_forward(const std::vector<at::Tensor>& outputs, bool is_shared);

  /// Clears the buckets and the state of a failed backward, and reduces over
  /// `groups` from then on.
  void replace_groups(
      const mesh::DeviceMesh& dp,
      std::vector<ReductionGroup> groups);

  /// Sets the hook of a running Join, or null.
  void set_join(std::shared_ptr<JoinReducerHook> join);
  /// Takes part in the message about reachable parameters, and in the
  /// reduction, of an iteration of the replicas with inputs: with accumulated
  /// gradients or zeros. `meanwhile` runs while those replicas compute
  /// gradients.
  void shadow_reachable();
  void shadow_backward(const std::function<void()>& meanwhile);
  /// Clears all .grad(), like zero_grad() on the replicas with inputs.
  void drop_gradients();

  /// Returns ParameterCast::full().
  at::Tensor full_precision(const at::Tensor& parameter) const;

  /// Makes the next and later backwards reduce with `hook`.
  void set_comm_hook(std::shared_ptr<data_parallel::CommHook> hook);
  const std::shared_ptr<data_parallel::CommHook>& comm_hook() const {
    return hook_;
  }
  /// Sets a function that is called for every parameter, by index, when its
  /// .grad() is final.
  void set_after_reduction(std::function<void(size_t)> after);
  void set_static_graph();
  /// Removes the hooks: backward passes only accumulate .grad().
  void remove_autograd_hooks();

  /// Sets whether finalize() waits for the reductions in place of backward().
  void require_manual_finalization(bool required);
  bool should_finalize_after_backward() const;
  /// Throws: c10::ValueError unless all buckets are in flight.
  void finalize();
  /// Throws: c10::ValueError naming the parameters with missing gradients, if
  /// the last backward did not end in a reduction.
  void check_finalized() const;

  /// Returns the names of the parameters of each bucket in the order of
  /// reduction: planned from the reverse order of parameters until the first
  /// backward, then from the order of that backward.
  std::vector<std::vector<std::string>> bucket_names() const;
  /// The size of each bucket in bytes.
  std::vector<int64_t> bucket_sizes() const;
  bool has_buckets() const;
  bool is_shadow() const { return is_shadow_; }
  /// Returns how the last synchronized backward used the parameters on this
  /// rank.
  GradientUse last_use() const;
  /// Called when an iteration begins that will be reduced. Returns true if the
  /// previous one was measured.
  bool begin_iteration();
  void set_sample_rate(int64_t every);
  void write_statistics(DDPLoggingData& data) const;
  /// See ddp/reducer/local_norms.h.
  void enable_local_norms();
  std::vector<LocalNorm> local_norms() const;

  /// Sets the buckets of the first backward to an earlier bucket_names() of the
  /// same parameters on the same mesh, instead of planned ones.
  /// Throws: c10::ValueError for an unknown or repeated name, or if buckets
  /// exist; backward() throws if the layout does not match its gradients.
  void set_bucket_layout(const std::vector<std::vector<std::string>>& layout);

 private:
  struct Parameter : ReducedParameter {
    /// The spec of a gradient that is Partial.
    std::optional<dtensor::DTensorSpec> pending;
    bool is_sparse = false;
    bool is_dtensor = false;
    /// The gradient's place once buckets exist. Empty if there is nothing to
    /// reduce.
    std::optional<size_t> bucket;
    size_t slot = 0;

    // Of the backward under way.
    bool is_ready = false;
    int64_t times_seen = 0;
    GradientProblem problem = GradientProblem::kNone;
    /// The previous .grad() if this rank added nothing to it.
    at::Tensor untouched;

    c10::ScalarType full_dtype = c10::ScalarType::Float;
    /// True if a gradient arrived since the last synchronized backward.
    bool is_used = false;
    /// With static_graph: how often a gradient arrives in each backward.
    int64_t times_expected = 1;
    /// True if a replica has a gradient.
    bool is_used_anywhere = true;
    int64_t last_used = 0;
    /// When its gradient arrived in the first backward, since the start of that
    /// backward.
    int64_t ready_ns = 0;
  };

  Reducer(
      std::vector<ReducedParameter> parameters,
      const mesh::DeviceMesh& dp,
      ReducerConfig config,
      std::shared_ptr<const std::atomic<int>> paused);

  std::vector<at::Tensor> leaves() const;
  void register_hooks();
  void start_search();
  void on_gradient(size_t index);
  void begin_backward();
  void learn_graph();
  void mark_ready(size_t index);
  void mark_unused();
  void all_reduce_reachable(bool has_inputs);
  void end_backward();
  void mark_problems();
  void reduce_all();
  /// Runs a function that throws because ranks agreed on a problem. This rank's
  /// own error, if there is one, replaces its error because it has more
  /// details.
  void fail_with_own_error(void (Reducer::*run)());
  void finish_backward();

  // In reducer_buckets.cpp: which bucket a gradient goes to.
  using Plan = std::vector<std::vector<size_t>>;
  /// Dtype, device, Partial spec, group, sparse parameter, used by any rank.
  using BucketKey = std::
      tuple<c10::ScalarType, c10::Device, const void*, size_t, size_t, bool>;
  BucketKey key_of(const Parameter& parameter) const;
  /// Returns the size of a gradient in a bucket.
  static int64_t reduced_bytes(const Parameter& parameter);
  std::optional<size_t> trigger() const;
  Plan current_plan() const;
  Plan plan(const std::vector<size_t>& order) const;
  void insert_delayed(Plan& buckets) const;
  void make_buckets();
  void check_layout(const Plan& layout, const Plan& planned) const;
  int64_t kind_of_bucket(const std::vector<size_t>& bucket) const;
  void adopt_kinds(const std::vector<int64_t>& kinds);
  BucketLayout layout_of(const std::vector<size_t>& bucket) const;
  bool is_reduced(const Parameter& parameter) const;
  void choose_caps(const std::vector<size_t>& order);

  // In reducer_gradients.cpp: how a gradient gets there and back.
  bool is_viewed(const Parameter& parameter) const;
  /// Copies the gradient to its place, and to its bucket if it has one.
  void copy_to_bucket(Parameter& parameter);
  void copy_unused_to_bucket(Parameter& parameter);
  void stash(Parameter& parameter);
  void place(Parameter& parameter);
  void check_gradient(const Parameter& parameter) const;
  void finalize_grads();
  void finalize_grad(GradientBucket& bucket, size_t slot);

  // Parameters of low precision (reducer_gradients.cpp).
  const at::Tensor& gradient(const Parameter& parameter) const;
  void set_gradient(Parameter& parameter, const at::Tensor& gradient);
  /// Casts a low-precision gradient to full precision.
  void upcast(Parameter& parameter);
  void restore_precision();
  /// Ends a forward without a backward, unless another forward's backward is to
  /// come.
  void end_forward_without_backward();

  // In reducer_join.cpp: where replicas may have run out of inputs.
  void begin_join();
  void copy_accumulated_to_bucket();

  // In reducer_report.cpp.
  void record_use();
  void keep_local_norm(size_t bucket);

  // In reducer_launch.cpp: how a bucket is reduced.
  void launch(size_t bucket);
  void launch_ready_buckets();
  void launch_remaining();
  void wait_for_buckets();
  data_parallel::BucketFuture start(size_t bucket);
  data_parallel::GradBucket as_seen_by_hook(size_t bucket) const;
  void check_finite(const GradientBucket& bucket);
  void reduce_partial_bucket(size_t bucket);
  bool is_skipped(const GradientBucket& bucket) const;
  void order_buckets();
  void take_result(size_t bucket, const at::Tensor& result);
  void report_hook(size_t bucket);

  // What replicas tell each other at the end of a backward.
  bool has_status_message() const;
  /// Returns true if the status is known only after the reductions.
  bool is_status_late() const;
  void send_status();
  void receive_status();
  void send_use_in_groups();
  void receive_use_in_groups();
  bool is_any_problem() const;
  bool is_problem_elsewhere();
  bool is_on_any_part(bool is_here);
  std::vector<GradientProblem> problems() const;
  BackwardReport report() const;

  size_t index_of(const Parameter& parameter) const {
    return static_cast<size_t>(&parameter - parameters_.data());
  }

  void reset();
  void drop_failed_backward();
  void clear();
  bool may_be_missing(const Parameter& parameter) const;
  double divisor(const GradientBucket& bucket) const;
  Replicas replicas() const;
  mesh::ErrorContext where() const;

  mesh::DeviceMesh dp_;
  ReducerConfig config_;
  std::shared_ptr<const std::atomic<int>> paused_;
  std::vector<Parameter> parameters_;
  std::vector<std::string> names_;
  std::vector<std::string> modules_;
  c10::Device device_;
  /// The meshes of the parameters.
  std::vector<mesh::DeviceMesh> tensor_meshes_;
  std::shared_ptr<data_parallel::CommHook> hook_;
  std::shared_ptr<JoinReducerHook> join_;
  std::function<void(size_t)> after_reduction_;
  bool is_finalized_manually_ = false;

  /// Recursive, because hooks and optimizers may call DDP's accessors.
  mutable std::recursive_mutex mutex_;
  std::vector<GradientBucket> buckets_;
  /// Buckets before this index are reduced as soon as they are full. The others
  /// are Partial.
  size_t partial_begin_ = 0;
  bool has_buckets_ = false;
  /// With static_graph: true if times_expected was determined in a backward of
  /// this replica.
  bool has_seen_graph_ = false;
  /// The argument of set_bucket_layout(), or empty.
  Plan layout_;

  // Since the last synchronised backward.
  int64_t forwards_ = 0;
  /// By parameter: true if no forward's graph reaches it. Empty without a
  /// search.
  std::vector<bool> is_unreachable_;
  /// By parameter: the number of replicas whose graph reaches it; last, the
  /// number of replicas with inputs. Sent as one message.
  at::Tensor reachable_counts_;
  std::optional<mesh::Work> reachable_work_;

  // Of the backward under way.
  std::vector<size_t> ready_;
  std::vector<size_t> waiting_for_;
  /// The buckets in launch order, and how many of them need not wait for the
  /// end of backward. Empty until the first launch.
  std::vector<size_t> launch_order_;
  size_t early_launches_ = 0;
  size_t launched_ = 0;
  std::vector<std::optional<data_parallel::BucketFuture>> futures_;
  bool is_running_ = false;
  bool is_join_begun_ = false;
  bool is_completed_ = false;
  /// True if errors are thrown on all replicas.
  bool has_agreed_error_ = false;
  /// True if this replica has no inputs.
  bool is_shadow_ = false;
  bool is_launched_ = false;
  bool is_restore_queued_ = false;
  /// True if the current forward cast the parameters.
  bool has_cast_parameters_ = false;
  /// True if backward accumulates into all leaves instead of chosen inputs.
  bool accumulates_into_all_leaves_ = false;
  /// The error from report() or a comm hook, which has more details than the
  /// common one.
  std::exception_ptr own_error_;
  bool passed_output_ = false;
  int64_t begin_ns_ = 0;
  /// The number of replicas that use each parameter, and that report a problem.
  at::Tensor status_;
  std::optional<mesh::Work> status_work_;
  struct GroupUse {
    at::Tensor counts;
    mesh::Work work;
  };
  /// By group, except the first.
  std::vector<GroupUse> group_use_;

  bool keeps_local_norms_ = false;
  /// The sums of squares of the last backward by bucket. Undefined if nothing
  /// was reduced.
  std::vector<at::Tensor> local_norms_;

  int64_t backwards_ = 0;
  RuntimeStatistics statistics_;
  /// The result of the last backward's search.
  std::optional<std::vector<size_t>> last_unreachable_;

  /// Null without find_unused_parameters.
  std::unique_ptr<UnusedParameters> search_;
  /// The last member, so that it is destroyed first and no callback uses a
  /// destroyed member.
  std::unique_ptr<data_parallel::GradientHooks> hooks_;
};

} // namespace weft::ddp
