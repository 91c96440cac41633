#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/parameter_selection.h"
#include "ddp/reducer/bucket_plan.h"
#include "ddp/reducer/logging_data.h"
#include "ddp/reducer/reducer.h"

namespace weft::ddp {

class DdpJoin;

/// Returns the parameters, and `buffers` with those of the replicas, by the
/// group whose ranks have equal values.
std::vector<std::vector<data_parallel::NamedTensor>> values_by_group(
    const ParameterSelection& selection,
    const std::vector<data_parallel::NamedTensor>& buffers);

/// The state of a DistributedDataParallel.
struct DistributedDataParallelBase::State {
  using Ids = std::unordered_set<const c10::TensorImpl*>;

  std::shared_ptr<torch::nn::Module> module;
  mesh::DeviceMesh dp;
  DistributedDataParallelOptions options;
  BucketCaps caps;
  std::shared_ptr<std::atomic<int>> paused =
      std::make_shared<std::atomic<int>>(0);
  std::vector<data_parallel::NamedTensor> parameters = {};
  /// The trained parameters by reducer index.
  std::vector<data_parallel::NamedTensor> reduced = {};
  /// The tensors that may require a gradient: reduced or ignored.
  Ids known = {};
  std::vector<ReductionGroup> groups = {};
  BufferCommHook buffer_hook = {};
  BufferCommHookLocation buffer_hook_location =
      BufferCommHookLocation::PRE_FORWARD;
  std::vector<std::shared_ptr<OptimizerInBackward>> optimizers = {};
  /// True if the previous forward's backward reduces or there was none. Buffers
  /// are synchronized once for all accumulated backwards.
  bool require_forward_param_sync = true;
  /// The part of this object in the running Join. Null if there is none.
  std::shared_ptr<DdpJoin> joined = {};
  DDPLoggingData logging = {};
  /// Null until the parameters have values.
  std::shared_ptr<Reducer> reducer = {};

  /// Returns the reducer.
  /// Throws: c10::ValueError that begins with `what`, if there is none.
  Reducer& require_reducer(const char* what) const;
  mesh::ErrorContext where() const { return {dp.describe_rank()}; }

  void sync_initial_values(const ParameterSelection& selection) const;
  void start(const ParameterSelection& selection);
  c10::Device device() const;
  bool is_training_forward() const;
  /// Whether forward synchronizes buffers, where there are several replicas.
  bool has_synced_buffers() const;
  bool syncs_buffers() const;
  void sync_buffers_at(BufferCommHookLocation location) const;
  /// Synchronizes the buffers with those of the replica `root`, unless a hook
  /// does it.
  void sync_buffers(int64_t root) const;
  void end_forward();
  void cast_buffers() const;
  void check_known() const;
  void add_optimizers(std::shared_ptr<OptimizerInBackward> added);
  void check_hook(const data_parallel::CommHook& hook) const;
  /// Makes the first backward use the buckets of a saved hook's state, as JSON.
  /// Throws: c10::ValueError if other buckets exist.
  void adopt_buckets(const std::string& names) const;
  DDPLoggingData get_logging_data() const;

 private:
  void remember_known();
  void check_no_hooks_registered() const;
  void take_over_optimizers();
};

} // namespace weft::ddp
