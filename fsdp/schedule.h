#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
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

/// The units of one model, and when they are gathered, given away and reduced.
/// Serves one thread at a time, as its group does: forward's caller, and
/// autograd's thread that runs backward for it.
class Schedule : public std::enable_shared_from_this<Schedule> {
 public:
  /// `units` in the order of their registration. `outermost`: the one that the
  /// whole model is called with, or null.
  Schedule(
      std::vector<std::unique_ptr<Unit>> units,
      const Unit* outermost,
      const ScheduleOptions& options,
      std::shared_ptr<std::atomic<int>> paused);
  ~Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Begins to listen to the parameters. Once, behind construction.
  void start();

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const UnitMemory& memory() const { return memory_; }

  /// The outermost module's forward begins, and has ended with `outputs`.
  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);
  /// After a forward that threw: nothing is sent. Throws nothing.
  void abandon_forward();
  /// Ends whatever is under way, for good. Throws nothing.
  void abandon();

  /// The call of a unit's module begins, and has ended with `outputs`.
  void begin_call(Unit& unit);
  void end_call(Unit& unit, const std::vector<at::Tensor>& outputs);

  /// See ParameterHooks.
  void before_use(Unit& unit, size_t parameter, bool is_forward);
  void before_gradient(Unit& unit, size_t parameter);

  /// By hand: gathers a unit, gives it away.
  void unshard(Unit& unit);
  void reshard(Unit& unit);
  /// All units, until end_whole(). Throws: c10::ValueError inside of a forward
  /// or a backward.
  void begin_whole();
  void end_whole(bool write_back);
  /// All units, outside of a forward, a backward and begin_whole(); nothing
  /// inside of one.
  void reshard_all();

 private:
  struct UnitState {
    /// Calls of its module that have not ended.
    int calls = 0;
    /// Has been used without a call, and another unit after it.
    bool is_left = false;
    /// Place in the order of this forward; -1 before its first use.
    int64_t order = -1;
  };
  class Hooks;
  struct OutputHook;

  UnitState& state_of(const Unit& unit);
  bool is_in_forward() const { return forward_depth_ > 0; }
  void start_forward();
  void use_in_forward(Unit& unit);
  void note_order(Unit& unit);
  void prefetch_in_forward(const Unit& unit);
  void leave(Unit& unit);
  void reshard_done(const Unit& current);
  void drop_failed_backward(int64_t pass);
  void listen_to(Unit& unit);
  /// Hooks the nodes behind which `unit` (null: no unit) is needed again.
  void hook_outputs(Unit* unit, const std::vector<at::Tensor>& outputs);

  void begin_backward();
  void use_in_backward(Unit& unit);
  void on_gradient(Unit& unit, size_t parameter);
  void reduce(Unit& unit);
  void prefetch_in_backward(const Unit& unit);
  void finish_reductions(size_t left);
  void end_backward();
  Unit* next_in_backward(const Unit& unit);

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitState> states_;
  const Unit* outermost_;
  ScheduleOptions options_;
  UnitMemory memory_;
  std::vector<std::unique_ptr<ddp::GradientHooks>> gradient_hooks_;
  /// While it is not 0, gradients stay this rank's own.
  std::shared_ptr<std::atomic<int>> paused_;

  int forward_depth_ = 0;
  Unit* last_used_ = nullptr;
  /// Units in the order of their first use in this forward, and in the last.
  std::vector<Unit*> order_;
  std::vector<Unit*> last_order_;

  /// The number of the last backward pass.
  int64_t pass_ = 0;
  /// It has not ended.
  bool is_in_backward_ = false;
  /// FullParameters scopes that are open.
  int whole_depth_ = 0;
  /// The pass is to compute gradients of some tensors alone.
  bool is_partial_ = false;
  std::deque<Unit*> in_flight_;
};

} // namespace weft::fsdp
