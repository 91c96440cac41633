#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/join/join.h"
#include "data_parallel/join/joinable.h"
#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/ddp_state.h"
#include "ddp/reducer/join_reducer_hook.h"
#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// The part of a DistributedDataParallel in one Join: what a rank with inputs
/// announces in forward and backward, and what a rank without inputs does
/// instead. See Note [Shadowing ranks].
class DdpJoin : public data_parallel::JoinHook,
                public JoinReducerHook,
                public std::enable_shared_from_this<DdpJoin> {
 public:
  using State = DistributedDataParallelBase::State;

  /// Throws: c10::ValueError for a kwarg of a wrong type or with an invalid
  /// value.
  DdpJoin(
      DistributedDataParallelBase& ddp,
      State& state,
      data_parallel::Join& join,
      const data_parallel::JoinKwargs& kwargs);
  DdpJoin(const DdpJoin&) = delete;
  DdpJoin& operator=(const DdpJoin&) = delete;
  ~DdpJoin() override;

  /// Called before a forward. `samples` is the number of its inputs, if known.
  void begin_forward(std::optional<int64_t> samples);
  /// Called before buffers are synchronized. Returns the replica whose buffers
  /// all ranks get.
  int64_t before_buffers(BufferCommHookLocation location);
  /// Called directly before and after the module's own forward.
  void before_module();
  void end_forward(const std::vector<at::Tensor>& outputs);
  bool is_in_iteration() const { return is_open_; }
  /// Returns true if this rank took part in iterations without inputs.
  bool has_shadowed() const { return has_shadowed_; }

  /// Copies an optimizer's state of the module's parameters from a rank that
  /// trained last to all ranks.
  /// Collective: all replicas, after they have run out of inputs.
  void share_optimizer_state(torch::optim::Optimizer& optimizer);

  void main_hook() override;
  void post_hook(bool is_last_joiner) override;
  bool has_agreed_error() const override { return has_agreed_error_; }

  void before_reachable() override;
  void begin() override;
  void confirm() override;
  double divisor(size_t group, double initial) override;
  void gradients_done() override;
  void end(bool is_completed, bool has_agreed_error) override;

 private:
  enum class Division { kInitial, kEffective, kBySamples };

  mesh::Communicator& replicas() const;
  bool has_events() const;
  void send_event(int64_t event);
  std::pair<int64_t, int64_t> read_event();
  void send_weights();
  double total_weight(size_t group);
  double own_weight() const;
  bool shadow_forward();
  void set_announcing(bool announces);
  void begin_paused_backward();
  void end_statistics();
  void shadow_statistics();
  const std::vector<int64_t>& roots();

  DistributedDataParallelBase& ddp_;
  State& state_;
  data_parallel::Join& join_;
  c10::Device device_;
  Division division_ = Division::kInitial;
  bool has_buffers_ = false;
  std::vector<std::shared_ptr<SyncBatchNormGroup>> channels_;

  /// The number of reductions that included this rank's gradients.
  int64_t trained_ = 0;
  /// True if this rank's forward began an iteration that is not reduced yet.
  bool is_open_ = false;
  /// The number of samples of this rank's forwards in the iteration.
  int64_t samples_ = 0;
  /// True while shadows expect statistics, until they are told of the end.
  bool is_in_statistics_ = false;
  bool has_agreed_error_ = false;
  bool has_shadowed_ = false;

  at::Tensor event_;
  std::optional<mesh::Work> event_work_;
  /// The weights by group, if needed.
  std::vector<at::Tensor> weights_;
  std::vector<std::optional<mesh::Work>> weight_works_;
  /// The replica whose values all ranks get at the end, by group.
  std::vector<int64_t> roots_;
};

} // namespace weft::ddp
