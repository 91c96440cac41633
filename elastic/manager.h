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

#include "elastic/link/lighthouse_link.h"
#include "lighthouse/member.h"
#include "mesh/communicator/communicator.h"
#include "mesh/world.h"

namespace torch::nn {
class Module;
} // namespace torch::nn
namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::elastic {

class Manager;

struct ManagerOptions {
  /// The timeout of a collective and of a meeting of the groups. A lost group
  /// is noticed earlier, through weftrun.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The number of steps that the state has when the program starts, for
  /// example that of the checkpoint it has loaded. The same on all groups.
  int64_t step = 0;
};

/// One try at a step: the groups that take part, and the step's end.
class Step {
 public:
  /// The number of the step, counted from 0.
  int64_t number() const { return number_; }
  /// The number of groups that take part.
  int64_t groups() const { return groups_; }
  /// The position of this group among them.
  int64_t group() const { return group_; }
  /// Returns this group's part [begin, end) of `count` samples. The parts of
  /// all groups cover each sample once.
  /// Throws: c10::ValueError if there are fewer samples than groups.
  std::pair<int64_t, int64_t> share(int64_t count) const;

  /// Ends the step. Returns true if the gradients are complete and every group
  /// applies them; then apply them once. Returns false if a group was lost
  /// before that; then nothing may be applied, and the same step is begun
  /// again. Blocks until one of the two is certain.
  /// Collective: all groups that take part.
  /// Throws: CommError if weftrun has gone, or if the same groups have failed
  /// three times; c10::ValueError at a second call.
  bool commit();

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
/// manager.register_optimizer("optimizer", optimizer);
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
/// order of additions depends on the groups. A group of more than one rank is
/// not supported yet.
/// Thread-safety: one thread calls begin_step(), Step and all_reduce(); hooks
/// of autograd run for it.
class Manager {
 public:
  using Save = std::function<std::string()>;
  using Load = std::function<void(const std::string&)>;

  /// Throws: UsageError if the process was not started by weftrun
  /// --replica-size, or if `world` has more than one rank.
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
  /// the first step.
  void register_state(std::string name, Save save, Load load);
  /// Registers the parameters and buffers of a module.
  void register_module(
      std::string name,
      std::shared_ptr<torch::nn::Module> module);
  /// Registers the state of an optimizer. Lifetime: it must outlive the steps.
  void register_optimizer(std::string name, torch::optim::Optimizer& optimizer);

  /// Returns the number of steps that are applied.
  int64_t step() const;
  /// Begins the next step. Blocks until the groups have met, and until a group
  /// without the state has got it.
  /// Collective: all groups.
  /// Throws: CommError if weftrun has gone.
  Step begin_step();

  /// Adds `tensor` over the groups of the step, in place. A failure is kept for
  /// Step::commit(): then the content is of no use and nothing is thrown.
  /// Collective: the groups of the step.
  void all_reduce(const at::Tensor& tensor, std::string_view name);

  /// The number of epochs that this group has entered.
  int64_t epochs() const;

 private:
  friend class Step;
  struct State {
    std::string name;
    Save save;
    Load load;
  };
  using Lock = std::unique_lock<std::mutex>;

  void follow(const Reply& reply);
  void beat();
  void report(const Lock& lock);
  void leave(Lock& lock);
  void leave_entered_epoch();

  bool commit_step();
  bool is_committed();
  void count_failure(
      const std::vector<GroupId>& groups,
      const std::exception_ptr& error);
  bool enter_next_epoch();
  bool try_to_enter(const Epoch& epoch, bool& applies);
  void meet(const Epoch& epoch);
  std::string state_names() const;
  void check_state_names(const at::Tensor& hashes) const;
  void share_state();
  void transfer_state(int64_t source, bool loads);
  std::string broadcast(std::string bytes, int64_t source);

  const mesh::World world_;
  const std::shared_ptr<LighthouseLink> link_;
  const ManagerOptions options_;
  std::vector<State> states_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Member member_;
  bool is_over_ = false;
  /// Set when weftrun has gone.
  std::exception_ptr link_error_;
  int64_t epochs_ = 0;
  /// The world of the epoch that was entered, which a reply aborts.
  std::optional<mesh::World> epoch_world_;

  // Of the calling thread.
  std::optional<mesh::Communicator> group_;
  /// The epoch that was entered last.
  Epoch entered_;
  bool has_shared_state_ = false;
  std::exception_ptr step_error_;
  /// How often the same groups have failed, and which.
  int64_t failures_ = 0;
  std::vector<GroupId> failed_groups_;

  std::thread heart_;
};

} // namespace weft::elastic
