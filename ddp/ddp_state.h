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

/// Parameters, and `buffers` with the replicas', by the group whose ranks have
/// the same values.
std::vector<std::vector<NamedTensor>> values_by_group(
    const ParameterSelection& selection,
    const std::vector<NamedTensor>& buffers);

/// What a DistributedDataParallel is made of.
struct DistributedDataParallelBase::State {
  using Ids = std::unordered_set<const c10::TensorImpl*>;

  std::shared_ptr<torch::nn::Module> module;
  mesh::DeviceMesh dp;
  DistributedDataParallelOptions options;
  BucketCaps caps;
  std::shared_ptr<std::atomic<int>> paused =
      std::make_shared<std::atomic<int>>(0);
  std::vector<NamedTensor> parameters = {};
  /// Those that are trained, by the reducer's indices.
  std::vector<NamedTensor> reduced = {};
  /// What may require a gradient: reduced or ignored.
  Ids known = {};
  std::vector<ReductionGroup> groups = {};
  BufferCommHook buffer_hook = {};
  BufferCommHookLocation buffer_hook_location =
      BufferCommHookLocation::PRE_FORWARD;
  std::vector<std::shared_ptr<OptimizerInBackward>> optimizers = {};
  /// The forward before this one was of a backward that reduces, or there was
  /// none: buffers are brought together once for all accumulated ones.
  bool require_forward_param_sync = true;
  /// What this does in the Join that runs; null otherwise.
  std::shared_ptr<DdpJoin> joined = {};
  DDPLoggingData logging = {};
  /// Null until the parameters have values.
  std::shared_ptr<Reducer> reducer = {};

  /// Throws: c10::ValueError if there is none; `what` begins the message.
  Reducer& require_reducer(const char* what) const;
  mesh::ErrorContext where() const { return {dp.describe_rank()}; }

  void sync_initial_values(const ParameterSelection& selection) const;
  void start(const ParameterSelection& selection);
  c10::Device device() const;
  bool is_training_forward() const;
  bool syncs_buffers() const;
  void sync_buffers_at(BufferCommHookLocation location) const;
  /// Unless a hook does it, `root` is the replica whose buffers all get.
  void sync_buffers(int64_t root) const;
  void end_forward();
  void cast_buffers() const;
  void check_known() const;
  void add_optimizers(std::shared_ptr<OptimizerInBackward> added);
  void check_hook(const CommHook& hook) const;
  /// Has the first backward make the buckets of a saved hook's state, as JSON.
  /// Throws: c10::ValueError if others were made already.
  void adopt_buckets(const std::string& names) const;
  DDPLoggingData get_logging_data() const;

 private:
  void remember_known();
  void check_no_hooks_registered() const;
  void take_over_optimizers();
};

} // namespace weft::ddp
