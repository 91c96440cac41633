#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/parameters/gradient_hooks.h"
#include "fsdp/memory_pool.h"
#include "fsdp/options.h"
#include "fsdp/unit.h"

namespace weft::fsdp {

// Note [When a unit is gathered]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// In forward a unit is gathered when its module is called through
// dtensor::call(), or else when an op first reads one of its parameters
// (ParameterHooks). It is given away when the call returns; without a call, one
// op after another unit was used, so that an op may read parameters of two.
//
// In backward the first of these gathers it: backward comes to what lies behind
// an output of its module's call; an op reads a parameter, or a view of one,
// that autograd saved; with kPre, the unit that forward used next comes to its
// backward. The sums of its gradients are under way once the gradients of all
// that is trained in it have come. It is given away then, or, where some of it
// is frozen and may be needed for gradients of inputs, once backward comes to
// the output of a unit that forward used earlier.
//
// At the end of a backward pass what did not get all its gradients is reduced
// in the order of registration, zeros for those that did not come: so each rank
// sends every unit's message once a pass, whatever it used.

/// The units of a model and their gathers, reshards and reductions. Used by one
/// thread at a time, like its group: forward's caller, and the autograd thread
/// that runs backward for it.
class Schedule : public std::enable_shared_from_this<Schedule> {
 public:
  /// `units` are in registration order. `outermost` is the unit of the module
  /// with which the model is called, or null.
  Schedule(
      std::vector<std::unique_ptr<Unit>> units,
      const Unit* outermost,
      const ScheduleOptions& options,
      std::shared_ptr<std::atomic<int>> paused,
      std::shared_ptr<std::atomic<int>> without_all_reduce);
  ~Schedule();
  /// Is told of collectives before they are sent, and of the end of a backward
  /// pass after its last one: `is_complete` if gradients are reduced over all
  /// ranks.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void before_gather(size_t unit) = 0;
    virtual void before_reduce(size_t unit, bool over_replicas) = 0;
    virtual void end_backward(bool is_complete) = 0;
  };
  /// Null means that there is none.
  void set_observer(Observer* observer) { observer_ = observer; }

  /// Takes part in a gather or reduction of other ranks' passes, without
  /// gradients other than those that this rank has accumulated.
  /// Collective: all ranks of the unit.
  void follow_gather(size_t unit);
  void follow_reduce(size_t unit, bool over_replicas);
  /// Ends such a pass: .grad() has the sums.
  void follow_end_of_backward();
  /// See Unit::set_contributors().
  void set_contributors(int64_t ranks);

  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Registers the hooks of the parameters. Called once after construction.
  void start();

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const UnitMemory& memory() const { return memory_; }

  /// Returns true in a forward, and in the backward of one.
  bool is_active() const;

  /// Called when the outermost module's forward begins, and when it has ended
  /// with `outputs`.
  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);
  /// Ends a forward that threw without communication. Does not throw.
  void abandon_forward();
  /// Ends all running work permanently. Does not throw.
  void abandon();

  /// Called when the call of a unit's module begins, and when it has ended with
  /// `outputs`. Both cast the tensors by the unit's mixed precision policy.
  void begin_call(Unit& unit, std::vector<at::Tensor>& inputs);
  void end_call(Unit& unit, std::vector<at::Tensor>& outputs);

  /// See ParameterHooks.
  void before_use(Unit& unit, size_t parameter, bool is_forward);
  void before_gradient(Unit& unit, size_t parameter);

  /// Sets the units that are gathered while `unit` computes, in this order, in
  /// place of those that ScheduleOptions selects.
  void set_forward_prefetch(const Unit& unit, std::vector<Unit*> next);
  void set_backward_prefetch(const Unit& unit, std::vector<Unit*> next);

  /// See Unit::set_comm_hook().
  void set_comm_hook(const std::shared_ptr<data_parallel::CommHook>& hook);

  /// Gathers or reshards a unit manually.
  void unshard(Unit& unit);
  void reshard(Unit& unit);
  /// Unshards all units until end_whole().
  /// Throws: c10::ValueError during a forward or backward.
  void begin_whole();
  void end_whole(bool write_back);
  bool is_whole() const { return whole_depth_ > 0; }
  /// Reshards all units, unless a forward, backward or begin_whole() is active.
  void reshard_all();

 private:
  struct UnitState {
    /// The number of running calls of its module.
    int calls = 0;
    /// True if it was used without a call, followed by another unit.
    bool is_left = false;
    /// The position in the order of this forward. -1 before its first use.
    int64_t order = -1;
  };
  /// The explicit prefetches of a unit, if they are set.
  struct Prefetches {
    std::optional<std::vector<Unit*>> forward;
    std::optional<std::vector<Unit*>> backward;
  };
  class Hooks;
  struct OutputHook;

  /// Returns true if the pass does not sum over the replicas.
  bool skips_all_reduce() const {
    return *without_all_reduce_ > 0 || follows_without_all_reduce_;
  }
  size_t index_of(const Unit& unit) const;
  UnitState& state_of(const Unit& unit);
  void start_gather(Unit& unit);
  void gather(Unit& unit);
  bool is_in_forward() const { return forward_depth_ > 0; }
  void start_forward();
  void use_in_forward(Unit& unit);
  void note_order(Unit& unit);
  void prefetch_in_forward(const Unit& unit);
  void leave(Unit& unit);
  void reshard_done(const Unit& current);
  void reshard_after_backward(Unit& unit);
  void drop_failed_backward(int64_t pass);
  void listen_to(Unit& unit);
  /// Adds hooks to the graph nodes after which `unit` is needed again. A null
  /// `unit` means that no unit is needed.
  void hook_outputs(Unit* unit, const std::vector<at::Tensor>& outputs);

  void begin_backward();
  void use_in_backward(Unit& unit);
  void on_gradient(Unit& unit, size_t parameter);
  void reduce(Unit& unit);
  void start_reduce(Unit& unit);
  void prefetch_in_backward(const Unit& unit);
  void finish_reductions(size_t left);
  void finish_over_replicas();
  void end_backward();
  Unit* next_in_backward(const Unit& unit);

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitState> states_;
  std::vector<Prefetches> prefetches_;
  const Unit* outermost_;
  ScheduleOptions options_;
  UnitMemory memory_;
  std::vector<std::unique_ptr<data_parallel::GradientHooks>> gradient_hooks_;
  /// While it is not 0, gradients stay local.
  std::shared_ptr<std::atomic<int>> paused_;
  /// While it is not 0, sharded gradients are not summed over the replicas.
  std::shared_ptr<std::atomic<int>> without_all_reduce_;

  int forward_depth_ = 0;
  Unit* last_used_ = nullptr;
  /// The units in the order of their first use in this and in the last forward.
  std::vector<Unit*> order_;
  std::vector<Unit*> last_order_;

  /// The number of the last backward pass.
  int64_t pass_ = 0;
  /// True until that pass has ended.
  bool is_in_backward_ = false;
  /// True while the backward pass of other ranks is followed.
  bool is_following_ = false;
  bool follows_without_all_reduce_ = false;
  Observer* observer_ = nullptr;
  /// The number of active FullParameters scopes.
  int whole_depth_ = 0;
  /// True if the pass computes gradients of some tensors only.
  bool is_partial_ = false;
  /// True if the pass records a graph of its own, for second derivatives.
  bool records_graph_ = false;
  std::deque<Unit*> in_flight_;
  /// The unit whose gradients are being summed over the replicas, or null.
  Unit* over_replicas_ = nullptr;
};

} // namespace weft::fsdp
