#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "elastic/lanes.h"
#include "elastic/link/lighthouse_link.h"
#include "elastic/quorum.h"
#include "elastic/shared_state.h"
#include "elastic/state_transfer.h"
#include "lighthouse/member.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "mesh/world.h"

namespace torch::nn {
class Module;
} // namespace torch::nn
namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::elastic {

class Manager;

/// Thrown on all ranks of the groups that are left if they are fewer than
/// ManagerOptions::min_groups and do not wait for others any longer.
class TooFewGroupsError : public mesh::CommError {
  using mesh::CommError::CommError;
};

/// The options of a Manager.
struct ManagerOptions {
  /// The timeout of a collective and of a meeting of the groups. A lost group
  /// is noticed earlier, through weftrun.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The number of steps that the state has when the program starts, for
  /// example that of the checkpoint it has loaded. If no group has trained yet,
  /// all begin with the state of one with the most steps.
  int64_t step = 0;
  /// The fewest groups that train. Fewer wait for others: without limit if they
  /// have nothing to save, otherwise for `join_timeout`, or until
  /// `is_asked_to_stop` returns true on rank 0 of one of them. Then `save` is
  /// called on all ranks of the first group that has the state, and
  /// begin_step() throws a TooFewGroupsError on all.
  int64_t min_groups = 1;
  /// The number of parts in which each step is computed, at least as many as
  /// there are groups: see Step::lanes(). 0 for sums whose rounding depends on
  /// the groups. Equal in all groups.
  int64_t lanes = 0;
  /// See `min_groups`.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(1);
  /// Called on a thread of the manager. May be empty.
  std::function<bool()> is_asked_to_stop = {};
  /// Saves the state after Manager::step() steps. May be empty.
  std::function<void()> save = {};
};

/// One try at a step: the groups that take part, and the step's end.
class Step {
 public:
  /// The number of the step, counted from 0.
  int64_t number() const { return number_; }
  /// The number of groups whose gradients count.
  int64_t groups() const { return groups_; }
  /// The position of this group among them.
  int64_t group() const { return group_; }
  /// Returns false if this group gets the state of another one during the step.
  /// It calls all functions as the others do, but what it adds counts as zero.
  bool counts() const { return group_ < groups_; }
  /// Returns this group's part [begin, end) of `count` samples. The parts of
  /// the groups that count cover each sample once. A group that does not count
  /// gets the first part.
  /// Throws: c10::ValueError if there are fewer samples than groups.
  std::pair<int64_t, int64_t> share(int64_t count) const;
  /// Returns the lanes [begin, end) that this group computes, one after
  /// another, each with gradients of its own. Lane l of n takes the samples of
  /// data-parallel rank l of n. The result of the step then has the same bits
  /// however many groups there are: see Note [Lanes] in elastic/lanes.h. A
  /// group that does not count gets the first lane.
  /// Throws: c10::ValueError without ManagerOptions::lanes.
  std::pair<int64_t, int64_t> lanes() const;
  /// Enters a lane. Until the result is destroyed, Manager::all_reduce() and
  /// the gradients of a wrapper are of this lane: they are kept in all lanes of
  /// the group but the last one, in which the sum over all lanes follows. Clear
  /// the gradients at the begin of each lane. `lane` is the first of lanes(),
  /// then the next one.
  /// Throws: c10::ValueError for another lane.
  [[nodiscard]] LaneScope enter_lane(int64_t lane);

  /// Starts to add `tensor` over the groups, and not over the lanes of one, and
  /// returns a function that waits for it: see Manager::start_all_reduce().
  /// Collective: rank t of each group of the step.
  [[nodiscard]] std::function<void()> start_sum_over_groups(
      const at::Tensor& tensor,
      std::string_view name);

  /// Blocks until the state that this group sends, or gets, during the step has
  /// arrived. From then on registered state may change for a while, such as
  /// weights that are exchanged for their averages.
  void wait_for_transfer();
  /// Ends the step. Returns true if the gradients are complete and every group
  /// applies them, on all its ranks; then apply them once. Returns false if a
  /// group was lost before that; then nothing may be applied, and the same step
  /// is begun again. Blocks until one of the two is certain. Collective: all
  /// ranks of all groups that take part. Throws: CommError if weftrun or a rank
  /// of this group has gone, or if the same groups have failed three times;
  /// DisagreementError, on all ranks of all groups, if registered texts or
  /// options of optimizers differ between groups; c10::ValueError at a second
  /// call.
  ///
  /// The ranks of the group tell each other whether they are prepared, in a
  /// message that a caller can save: `are_all_prepared` is the same on all of
  /// them, and true only if is_prepared() was on each, after all that is added.
  bool commit(std::optional<bool> are_all_prepared = std::nullopt);
  /// Returns whether this rank has complete gradients: nothing that was added
  /// has failed. Blocks until the state that is sent during the step has
  /// arrived.
  bool is_prepared();

 private:
  friend class Manager;
  Step(Manager& manager, int64_t number, int64_t groups, int64_t group)
      : manager_(manager), number_(number), groups_(groups), group_(group) {}

  Manager& manager_;
  int64_t number_;
  int64_t groups_;
  int64_t group_;
  bool is_over_ = false;
};

/// Trains a replica group together with those that weftrun --replica-size has
/// started, while groups are lost and come back. The survivors of a lost group
/// go on in the same process, from the same step, with the same samples.
///
/// ```
/// Manager manager(mesh::World::from_env());
/// manager.register_module("model", model);
/// manager.register_optimizer("optimizer", optimizer, model);
/// PureDistributedDataParallel ddp(manager, model);
/// while (manager.step() < kSteps) {
///   auto step = manager.begin_step();
///   optimizer.zero_grad();
///   const auto [begin, end] = step.share(kBatch);
///   // The loss of samples [begin, end), divided by kBatch:
///   loss(batch(step.number()), begin, end).backward();
///   if (step.commit()) {
///     optimizer.step();
///   }
/// }
/// ```
///
/// Each step computes the same as one process would: gradients are added over
/// the groups, so the loss is divided by the size of the whole batch. Only the
/// order of additions depends on the groups, and with lanes it does not.
///
/// The ranks of a group, for example of tensor parallelism, call all functions
/// together, and decide alike: see Note [Ranks of a group]. Rank t of each
/// group adds and gets state with rank t of the others. If a rank is lost,
/// weftrun ends its group. Thread-safety: one thread calls begin_step(), Step
/// and all_reduce(); hooks of autograd run for it.
class Manager {
 public:
  /// `world` has the ranks of this group.
  /// Throws: UsageError if the process was not started by weftrun
  /// --replica-size, or if `world` is of CUDA devices.
  explicit Manager(mesh::World world, ManagerOptions options = {});
  /// Takes a connection to the lighthouse.
  Manager(
      mesh::World world,
      std::shared_ptr<LighthouseLink> link,
      ManagerOptions options = {});
  /// Tells the lighthouse that this group has done all its steps, unless an
  /// exception ends it.
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  /// Registers a part of the state that a group gets from another one when it
  /// comes late. All groups register the same names in the same order, before
  /// the first step. See SharedState.
  void register_state(
      std::string name,
      SharedState::Get get,
      SharedState::Load load = {});
  /// Registers a text that must be equal in all groups, such as an option, or
  /// replaces the text of that name.
  void register_text(std::string name, std::string text);
  /// Registers the parameters and buffers of a module.
  /// Collective: the ranks of the group.
  /// Throws: c10::ValueError naming a layer with running statistics (BatchNorm,
  /// InstanceNorm), which differ between groups.
  void register_module(
      std::string name,
      std::shared_ptr<torch::nn::Module> module);
  /// Registers the state of an optimizer of the parameters of `module`: see
  /// dtensor::optimizer_state_dict(). Its options, such as learning rates, are
  /// those of the group that sends the state, as they are when Step::commit()
  /// is called; they are compared in each commit(). Lifetime: it must outlive
  /// the steps. Collective: the ranks of the group.
  void register_optimizer(
      std::string name,
      torch::optim::Optimizer& optimizer,
      const std::shared_ptr<torch::nn::Module>& module);

  /// Returns the number of steps that are applied.
  int64_t step() const;
  /// Begins the next step. Blocks until the groups have met. The others wait
  /// for this group from the first call on, so that what takes long, such as to
  /// load data or to compute for the first time, is best done before. A late
  /// group gets the state during the step, and has it when Step::commit()
  /// returns true.
  /// Collective: all ranks of all groups.
  /// Throws: CommError if weftrun or a rank of this group has gone;
  /// TooFewGroupsError if there are fewer groups than
  /// ManagerOptions::min_groups; DisagreementError if the groups have
  /// registered different states.
  Step begin_step();

  /// Adds `tensor` over the groups of the step, in place. A failure is kept for
  /// Step::commit(): then the content is of no use and nothing is thrown.
  /// Collective: rank t of each group of the step.
  void all_reduce(const at::Tensor& tensor, std::string_view name);
  /// Starts the same and returns a function that waits for it, to be called
  /// once before Step::commit(). The tensor is not used until then. In a lane
  /// the groups call these functions in the same order.
  [[nodiscard]] std::function<void()> start_all_reduce(
      const at::Tensor& tensor,
      std::string_view name);

  /// Makes this group leave the others after the step that is running. When
  /// commit() has returned true, the step is applied and has_left() returns
  /// true, it can end, and the others lose no step. begin_step() must not be
  /// called after that. If has_left() returns false, the epoch ended before
  /// this group could leave, because a group was lost or the others were
  /// faster: call it again in the next step.
  ///
  /// Collective: the ranks of the group, during a step.
  void leave_after_step() { leaves_after_step_ = true; }
  /// Returns true after the last step of a group that leaves.
  bool has_left() const { return has_left_for_good_; }
  /// Returns true if a signal to weftrun ends the run, and false if one that
  /// this process has got was sent to it alone.
  /// Throws: CommError if weftrun has gone.
  bool is_run_ending() const;
  /// Whether weftrun has started this group again, so that others have the
  /// state.
  bool is_restarted() const { return link_->group().is_restarted; }
  /// The number of epochs that this group has entered.
  int64_t epochs() const;
  /// The number of the epoch that was entered last: Quorum::epoch.
  int64_t epoch() const { return static_cast<int64_t>(entered_.number.count); }
  /// Returns the groups of the last committed step, if they are others than at
  /// the last call. On rank 0 of the group; elsewhere nothing.
  std::optional<Quorum> take_quorum() { return quorum_.take(); }
  /// The time for which all_reduce() and the functions of start_all_reduce()
  /// have blocked, in nanoseconds.
  int64_t blocked_ns() const { return blocked_ns_; }

 private:
  friend class Step;
  using Lock = std::unique_lock<std::mutex>;
  /// The place of this group in an epoch.
  struct Place {
    lighthouse::EpochNumber number;
    int64_t rank = 0;
    int64_t groups = 0;
  };
  /// What follows when the groups of an epoch have met.
  struct Entry {
    bool is_entered = false;
    bool applies = false;
    bool has_state = false;
    int64_t step = 0;
  };

  void begin();
  void follow(const lighthouse::Reply& reply);
  void beat();
  void report(const Lock& lock);
  void note_end(const Lock& lock);
  void leave(Lock& lock);
  bool has_ended(const lighthouse::EpochNumber& epoch) const;

  bool leads() const { return world_.rank() == 0; }
  bool is_on_all_ranks(bool holds);
  std::vector<int64_t> from_leader(std::vector<int64_t> values);
  static std::exception_ptr error_of_another_rank();

  // A step: elastic/manager_step.cpp.
  struct SumKind {
    /// Over the lanes, and else over the groups.
    bool is_over_lanes = false;
    /// Whether the caller waits at once.
    bool is_needed_now = false;
  };
  std::function<void()>
  start_sum(const at::Tensor& tensor, std::string_view name, SumKind kind);
  std::function<void()> start_group_sum(
      const at::Tensor& tensor,
      std::string_view name);
  std::function<void()>
  send_sum(const at::Tensor& tensor, std::string_view name, bool is_needed_now);
  void keep_failure(const std::function<void()>& run);
  bool is_prepared();
  bool commit_step(std::optional<bool> are_all_prepared);
  bool is_committed(std::optional<bool> are_all_prepared);
  void count_failure(const std::exception_ptr& error);
  void wait_for_transfer();
  void take_state();
  bool is_known_to_fail() const;
  void send_changes();

  // The way into an epoch: elastic/manager_epoch.cpp.
  void leave_entered_epoch();
  bool enter_next_epoch();
  std::optional<Place> next_place();
  Entry try_to_enter(const Place& place);
  void meet(const Place& place);
  bool compare_states();
  bool are_too_few() const;
  void end_with_too_few();
  void set_counting(const std::vector<bool>& counts);
  void start_transfer(int64_t source, const at::Tensor& have_state);
  void record_quorum(const at::Tensor& numbers);

  const mesh::World world_;
  const std::shared_ptr<LighthouseLink> link_;
  const ManagerOptions options_;
  SharedState state_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  /// Used by the leader only.
  lighthouse::Member member_;
  /// Used by the other ranks only: the newest epoch that the lighthouse has
  /// announced, and the newest one that it has ended.
  lighthouse::EpochNumber announced_;
  lighthouse::EpochNumber ended_;
  bool is_over_ = false;
  bool has_left_for_good_ = false;
  /// Set when weftrun has gone.
  std::exception_ptr link_error_;
  int64_t epochs_ = 0;
  int64_t step_ = 0;
  /// The world of an epoch, which a reply aborts, and its number.
  std::optional<mesh::World> epoch_world_;
  lighthouse::EpochNumber met_;
  /// The time at which the epoch ended for this group, or 0 before that.
  lighthouse::Time left_{0};

  // Of the calling thread.
  bool is_begun_ = false;
  std::optional<mesh::Communicator> group_;
  /// The epoch that was entered last. Only the leader knows more than its
  /// number.
  lighthouse::Epoch entered_;
  bool has_state_ = false;
  /// Whether compare_states() is done in the epoch.
  bool is_ready_ = false;
  /// Whether send_changes() is done in the step.
  bool has_sent_changes_ = false;
  /// The number of groups whose gradients count, and the position among them.
  int64_t counting_groups_ = 0;
  int64_t position_ = 0;
  /// The rank in group_ of the first group whose gradients count.
  int64_t first_counting_ = 0;
  Lanes lanes_;
  /// The state that this rank sends, or receives, during the step.
  std::unique_ptr<StateTransfer> transfer_;
  StateTransfer::Buffers buffers_;
  std::exception_ptr step_error_;
  int64_t blocked_ns_ = 0;
  QuorumRecorder quorum_;
  bool leaves_after_step_ = false;
  /// How often the same groups have failed, and which.
  int64_t failures_ = 0;
  std::vector<lighthouse::GroupId> failed_groups_;

  std::thread heart_;
};

} // namespace weft::elastic
