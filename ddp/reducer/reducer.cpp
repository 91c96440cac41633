#include "ddp/reducer/reducer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"

// Note [Order of reductions]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// All replicas must reduce the same buckets in the same order, in whatever
// order their gradients become ready. Bucket i is launched once it is full and
// bucket i - 1 was launched. The order of gradients is known only after the
// first backward, so this backward reduces nothing before its end. There the
// replicas adopt the order of the first replica, make the buckets from it once,
// and reduce all of them. Later backward passes launch reductions while they
// run, and wait at their end.
//
// A replica with a problem must not leave the other replicas waiting. It puts
// zeros where a gradient is missing, continues, and reports the problem at the
// end, by a flag: an additional element of the last bucket, which is launched
// at the end of backward. If that bucket cannot carry a flag (comm hooks,
// gradients reduced in place, several groups, a search for unused parameters),
// a separate message carries it. All replicas then exchange their problems and
// throw an error.
//
// Launches and waits happen on the thread that runs backward, at places that
// the graph determines. So tensor-parallel collectives, which have their own
// groups, also run in the same order on all ranks.

// Note [Partial sums]
// ~~~~~~~~~~~~~~~~~~~
// A gradient that is Partial over tensor-parallel ranks is reduced here instead
// of in dtensor/tensor/gradient.cpp. Such gradients share separate buckets,
// which are summed over their mesh at the end of backward and then reduced over
// the replicas. Under no_sync() they stay Partial. These buckets follow the
// reversed order of parameters, which is the same on all ranks of the mesh by
// construction.

// Note [Unused parameters]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// With find_unused_parameters the reducer searches the graph of each forward. A
// parameter that the graph does not reach counts as ready when backward begins,
// with zeros or with the value of .grad(). An all_reduce of one count per
// parameter, started in forward, yields how many replicas reach each parameter.
// Buckets that all replicas fill are reduced while backward runs. The replicas
// that do not use the other buckets could launch them at any time; a collective
// of the caller on the same group might then come before the launch on one
// replica and after it on another. So these buckets are launched last, at the
// end of backward, at the same place on all replicas.
//
// Which parameters received a gradient on any replica is known at the end. For
// the others .grad() is left or restored. A parameter that the search reached
// but that received no gradient (its output was not part of the loss) is
// treated as unused. Under static_graph the first backward decides this for all
// later ones.

namespace weft::ddp {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

std::shared_ptr<Reducer> Reducer::create(
    std::vector<ReducedParameter> parameters,
    const mesh::DeviceMesh& dp,
    ReducerConfig config,
    std::shared_ptr<const std::atomic<int>> paused) {
  std::shared_ptr<Reducer> reducer(new Reducer(
      std::move(parameters), dp, std::move(config), std::move(paused)));
  reducer->register_hooks();
  return reducer;
}

Reducer::Reducer(
    std::vector<ReducedParameter> parameters,
    const mesh::DeviceMesh& dp,
    ReducerConfig config,
    std::shared_ptr<const std::atomic<int>> paused)
    : dp_(dp),
      config_(std::move(config)),
      paused_(std::move(paused)),
      device_(
          data_parallel::local_part(parameters.at(0).state.tensor).device()) {
  for (auto& item : parameters) {
    const auto& tensor = item.state.tensor;
    if (const auto* impl = dtensor::dtensor_impl(tensor);
        impl && impl->spec().mesh_ndim() > 0) {
      dtensor::parameter_info(tensor).gradient_reduced_by_ddp = true;
      dtensor::match_gradient_placement(tensor);
      const auto& mesh = impl->spec().mesh();
      if (std::find(tensor_meshes_.begin(), tensor_meshes_.end(), mesh) ==
          tensor_meshes_.end()) {
        tensor_meshes_.push_back(mesh);
      }
    }
    names_.push_back(item.state.name);
    modules_.push_back(item.modules);
    Parameter parameter;
    static_cast<ReducedParameter&>(parameter) = std::move(item);
    parameter.full_dtype = parameter.state.tensor.scalar_type();
    parameter.is_dtensor = dtensor::dtensor_impl(parameter.state.tensor);
    parameters_.push_back(std::move(parameter));
  }
}

Reducer::~Reducer() {
  hooks_.reset();
  restore_precision();
  for (const auto& parameter : parameters_) {
    if (dtensor::dtensor_impl(parameter.state.tensor)) {
      dtensor::parameter_info(parameter.state.tensor).gradient_reduced_by_ddp =
          false;
    }
  }
}

std::vector<at::Tensor> Reducer::leaves() const {
  std::vector<at::Tensor> leaves;
  for (const auto& parameter : parameters_) {
    leaves.push_back(parameter.state.tensor);
  }
  return leaves;
}

void Reducer::register_hooks() {
  // hooks_ is destroyed first, so that the callback can use `this`.
  hooks_ = std::make_unique<data_parallel::GradientHooks>(
      leaves(),
      [this](size_t i) { on_gradient(i); },
      data_parallel::HookOwner::kReducer,
      weak_from_this());
  start_search();
}

// Called whenever parameters change their dtype, which changes their
// AccumulateGrad nodes.
void Reducer::start_search() {
  search_.reset();
  const auto& options = config_.options;
  if (!options.find_unused_parameters || options.static_graph) {
    return;
  }
  search_ = std::make_unique<UnusedParameters>(leaves());
}

void Reducer::remove_autograd_hooks() {
  const std::lock_guard lock(mutex_);
  hooks_.reset();
}

Replicas Reducer::replicas() const {
  return {.dp = dp_, .names = names_, .modules = modules_, .device = device_};
}

mesh::ErrorContext Reducer::where() const {
  return {dp_.describe_rank()};
}

void Reducer::set_static_graph() {
  const std::lock_guard lock(mutex_);
  WEFT_CHECK(
      !has_buckets_,
      "ddp",
      where(),
      "static_graph must be set before the first backward: the graphs of "
      "earlier backwards were not recorded.");
  config_.options.static_graph = true;
  start_search();
}

void Reducer::set_comm_hook(std::shared_ptr<data_parallel::CommHook> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void Reducer::set_after_reduction(std::function<void(size_t)> after) {
  const std::lock_guard lock(mutex_);
  after_reduction_ = std::move(after);
}

void Reducer::drop_failed_backward() {
  WEFT_CHECK(
      !is_finalized_manually_ || !is_launched_,
      "ddp",
      where(),
      "the last backward was not finalized. Call finalize_backward() after "
      "each backward() outside of no_sync().");
  if (is_running_) {
    reset();
  }
  own_error_ = nullptr;
}

void Reducer::begin_forward(bool needs_backward) {
  const std::lock_guard lock(mutex_);
  drop_failed_backward();
  forwards_ += needs_backward ? 1 : 0;
  has_cast_parameters_ = config_.cast && !config_.cast->is_low_precision();
  if (has_cast_parameters_) {
    config_.cast->cast_to_low_precision();
    start_search();
  }
}

void Reducer::end_forward(
    const std::vector<at::Tensor>& outputs,
    bool is_shared) {
  const std::lock_guard lock(mutex_);
  bool any = false;
  const std::weak_ptr<Reducer> weak = weak_from_this();
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad()) {
      continue;
    }
    any = true;
    output.register_hook([weak](const at::Tensor&) {
      if (const auto self = weak.lock(); self && *self->paused_ == 0) {
        const std::lock_guard lock(self->mutex_);
        if (self->hooks_) {
          self->passed_output_ = true;
          self->accumulates_into_all_leaves_ =
              torch::autograd::get_current_graph_task_exec_info()->empty();
          if (self->accumulates_into_all_leaves_) {
            self->begin_join();
          }
          self->begin_backward();
        }
      }
    });
  }
  if (!any) {
    end_forward_without_backward();
  } else if (search_ && hooks_) {
    std::vector<bool> is_unused(parameters_.size(), false);
    for (const size_t i : search_->find(outputs)) {
      is_unused[i] = true;
    }
    if (is_unreachable_.empty()) {
      is_unreachable_ = is_unused;
    }
    for (size_t i = 0; i < is_unused.size(); ++i) {
      is_unreachable_[i] = is_unreachable_[i] && is_unused[i];
    }
    if (is_shared) {
      all_reduce_reachable(true);
    }
  }
}

void Reducer::all_reduce_reachable(bool has_inputs) {
  if (!has_buckets_ || *paused_ != 0 || dp_.size() == 1) {
    return;
  }
  if (join_ && has_inputs) {
    join_->before_reachable();
  }
  if (reachable_work_) {
    reachable_work_->wait();
  }
  std::vector<int64_t> reach(parameters_.size() + 1, 0);
  for (size_t i = 0; has_inputs && i < is_unreachable_.size(); ++i) {
    reach[i] = is_unreachable_[i] ? 0 : 1;
  }
  reach.back() = has_inputs ? 1 : 0;
  reachable_counts_ = at::tensor(reach, at::kLong).to(device_);
  reachable_work_ = dp_.group(int64_t{0})
                        .all_reduce(
                            reachable_counts_,
                            mesh::ReduceOp::kSum,
                            "ddp reachable parameters");
}

void Reducer::on_gradient(size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  auto& parameter = parameters_[index];
  upcast(parameter);
  if (!gradient(parameter).defined()) {
    return;
  }
  parameter.is_used = true;
  if (*paused_ != 0) {
    stash(parameter);
    return;
  }
  begin_join();
  begin_backward();
  ++parameter.times_seen;
  const bool is_static = config_.options.static_graph;
  if (is_static && has_buckets_) {
    if (!has_seen_graph_) {
      return;
    }
    if (parameter.times_seen > parameter.times_expected) {
      parameter.problem = GradientProblem::kGraphChanged;
    } else if (parameter.times_seen == parameter.times_expected) {
      mark_ready(index);
    }
  } else if (!parameter.is_ready) {
    mark_ready(index);
  } else if (!is_static) {
    parameter.problem = GradientProblem::kTwice;
  }
}

namespace {

/// Reports a failed backward pass to the peers. The engine destroys the
/// callback that holds this object when a node throws.
class BackwardPart {
 public:
  explicit BackwardPart(mesh::World world) : world_(std::move(world)) {}
  BackwardPart(const BackwardPart&) = delete;
  BackwardPart& operator=(const BackwardPart&) = delete;
  ~BackwardPart() {
    if (has_come_to_its_end_) {
      return;
    }
    try {
      world_.run_and_report_errors("the backward pass", [] {
        throw std::runtime_error("see what backward() threw there");
      });
    } catch (const std::exception&) {
      // The engine throws the error of the node.
    }
  }
  void end() { has_come_to_its_end_ = true; }

 private:
  mesh::World world_;
  bool has_come_to_its_end_ = false;
};

} // namespace

void Reducer::begin_backward() {
  if (is_running_) {
    return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(),
       part = std::make_shared<BackwardPart>(dp_.world())] {
        part->end();
        self->end_backward();
      });
  is_running_ = true;
  local_norms_.clear();
  begin_ns_ = now_ns();
  statistics_.on_backward_begin(RuntimeStatistics::Clock::now());
  if (has_buckets_) {
    const at::NoGradGuard no_grad;
    mark_unused();
  }
}

void Reducer::mark_unused() {
  for (size_t i = 0; i < is_unreachable_.size(); ++i) {
    auto& parameter = parameters_[i];
    if (is_unreachable_[i] && !parameter.is_ready) {
      parameter.is_ready = true;
      copy_unused_to_bucket(parameter);
      if (parameter.bucket) {
        --waiting_for_[*parameter.bucket];
      }
    }
  }
  launch_ready_buckets();
}

void Reducer::mark_ready(size_t index) {
  auto& parameter = parameters_[index];
  parameter.is_ready = true;
  parameter.last_used = backwards_ + 1;
  ready_.push_back(index);
  if (!has_buckets_) {
    parameter.ready_ns = now_ns() - begin_ns_;
    return;
  }
  copy_to_bucket(parameter);
  if (parameter.bucket) {
    --waiting_for_[*parameter.bucket];
    launch_ready_buckets();
  }
}

bool Reducer::may_be_missing(const Parameter& parameter) const {
  if (config_.options.static_graph) {
    return !has_buckets_ || parameter.times_expected == 0;
  }
  return config_.options.find_unused_parameters;
}

// Learns the graph of static_graph on a replica that had no inputs in the first
// backward.
void Reducer::learn_graph() {
  if (!config_.options.static_graph || !has_buckets_ || has_seen_graph_) {
    return;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = parameters_[i];
    has_seen_graph_ = has_seen_graph_ || parameter.times_seen > 0;
    parameter.times_expected = parameter.times_seen;
    if (parameter.times_seen > 0) {
      mark_ready(i);
    }
  }
}

void Reducer::report(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  own_error_ = std::move(error);
}

void Reducer::mark_problems() {
  for (auto& parameter : parameters_) {
    if (!parameter.is_ready && !may_be_missing(parameter)) {
      parameter.problem = config_.options.static_graph
                              ? GradientProblem::kGraphChanged
                              : GradientProblem::kMissing;
    } else if (
        parameter.is_ready && forwards_ == 0 && !passed_output_ &&
        parameter.problem == GradientProblem::kNone) {
      parameter.problem = GradientProblem::kNoForward;
    }
  }
  const bool is_of_gradient =
      std::ranges::any_of(parameters_, [](const auto& parameter) {
        return parameter.problem == GradientProblem::kUnusable;
      });
  if (own_error_ && !is_of_gradient) {
    parameters_.front().problem = GradientProblem::kModuleChanged;
  }
}

void Reducer::end_backward() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  bool is_done = true;
  const auto end = c10::make_scope_exit([&] {
    if (is_done) {
      clear();
    }
  });
  learn_graph();
  // A backward to chosen inputs reduces nothing. One to all leaves reduces,
  // even if the loss depends on no parameter here.
  if (ready_.empty() && !accumulates_into_all_leaves_) {
    return;
  }
  if (join_) {
    join_->gradients_done();
  }
  mark_problems();
  fail_with_own_error(&Reducer::reduce_all);
  is_launched_ = true;
  if (is_finalized_manually_) {
    is_done = false;
  } else {
    fail_with_own_error(&Reducer::finish_backward);
  }
}

void Reducer::fail_with_own_error(void (Reducer::*run)()) {
  try {
    (this->*run)();
  } catch (const c10::ValueError&) {
    if (own_error_) {
      std::rethrow_exception(own_error_);
    }
    throw;
  }
}

void Reducer::reduce_all() {
  if (join_) {
    join_->confirm();
  }
  if (!has_buckets_) {
    make_buckets();
    for (const size_t i : ready_) {
      copy_to_bucket(parameters_[i]);
    }
  }
  if (!is_shadow_) {
    statistics_.on_backward_compute_end(RuntimeStatistics::Clock::now());
  }
  launch_remaining();
}

void Reducer::finish_backward() {
  wait_for_buckets();
  if (!is_shadow_) {
    statistics_.on_comm_end(RuntimeStatistics::Clock::now());
  }
  receive_status();
  if (is_any_problem() || is_problem_elsewhere()) {
    has_agreed_error_ = true;
    throw_problems(replicas(), problems());
  }
  finalize_grads();
  ++backwards_;
  if (!is_shadow_) {
    record_use();
    is_completed_ = true;
  }
  for (auto& parameter : parameters_) {
    parameter.is_used = false;
  }
  if (after_reduction_) {
    restore_precision();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      after_reduction_(i);
    }
  }
}

std::vector<GradientProblem> Reducer::problems() const {
  std::vector<GradientProblem> result;
  for (const auto& parameter : parameters_) {
    result.push_back(parameter.problem);
  }
  return result;
}

void Reducer::require_manual_finalization(bool required) {
  const std::lock_guard lock(mutex_);
  WEFT_CHECK(
      !is_running_,
      "ddp",
      where(),
      "require_manual_backward_finalization cannot change during a backward. "
      "Set it before forward.");
  is_finalized_manually_ = required;
}

bool Reducer::should_finalize_after_backward() const {
  const std::lock_guard lock(mutex_);
  return is_finalized_manually_;
}

void Reducer::finalize() {
  const std::lock_guard lock(mutex_);
  WEFT_CHECK(
      is_finalized_manually_ && is_launched_,
      "ddp",
      where(),
      "finalize_backward() has nothing to finalize: ",
      !is_finalized_manually_
          ? "set require_manual_backward_finalization(true) before forward."
          : "call it once after each backward() outside of no_sync().");
  const at::NoGradGuard no_grad;
  const auto end = c10::make_scope_exit([this] { clear(); });
  fail_with_own_error(&Reducer::finish_backward);
}

void Reducer::check_finalized() const {
  const std::lock_guard lock(mutex_);
  if (!is_running_) {
    return;
  }
  std::string awaited;
  for (const auto& parameter : parameters_) {
    if (!parameter.is_ready) {
      awaited += (awaited.empty() ? "" : ", ") + parameter.state.name;
    }
  }
  WEFT_CHECK(
      false,
      "ddp",
      where(),
      "the last backward did not finish the reduction",
      awaited.empty() ? ". Call finalize_backward()."
                      : "; gradients are missing for " + awaited +
                            ". An error in backward() causes this state; the "
                            "next forward clears it.");
}

void Reducer::clear() {
  if (!buckets_.empty()) {
    buckets_.back().lower_flag();
  }
  for (auto& parameter : parameters_) {
    parameter.is_ready = false;
    parameter.times_seen = 0;
    parameter.problem = GradientProblem::kNone;
    parameter.untouched = at::Tensor();
    if (search_) {
      parameter.is_used_anywhere = true;
    }
  }
  ready_.clear();
  futures_.clear();
  launched_ = 0;
  launch_order_.clear();
  reachable_counts_ = at::Tensor();
  reachable_work_.reset();
  is_running_ = false;
  is_launched_ = false;
  if (std::exchange(is_join_begun_, false) && join_) {
    join_->end(is_completed_, has_agreed_error_);
  }
  is_completed_ = false;
  has_agreed_error_ = false;
  passed_output_ = false;
  accumulates_into_all_leaves_ = false;
  own_error_ = nullptr;
  forwards_ = 0;
  is_unreachable_.clear();
  status_ = at::Tensor();
  status_work_.reset();
  group_use_.clear();
  waiting_for_.clear();
  for (auto& bucket : buckets_) {
    waiting_for_.push_back(bucket.slots().size());
    if (config_.options.lazy_bucket_allocation) {
      bucket.release();
    }
  }
  futures_.resize(buckets_.size());
  restore_precision();
}

void Reducer::reset() {
  const auto end = c10::make_scope_exit([this] { clear(); });
  for (auto& future : futures_) {
    if (future) {
      std::exchange(future, std::nullopt)->wait();
    }
  }
}

void Reducer::replace_groups(
    const mesh::DeviceMesh& dp,
    std::vector<ReductionGroup> groups) {
  const std::lock_guard lock(mutex_);
  // The old group may be broken, so its pending collectives are not waited for.
  clear();
  dp_ = dp;
  config_.groups = std::move(groups);
  buckets_.clear();
  local_norms_.clear();
  waiting_for_.clear();
  futures_.clear();
  layout_.clear();
  partial_begin_ = 0;
  has_buckets_ = false;
  has_seen_graph_ = false;
  for (auto& parameter : parameters_) {
    parameter.bucket.reset();
    parameter.is_used_anywhere = true;
    parameter.times_expected = 1;
  }
}

bool Reducer::has_buckets() const {
  const std::lock_guard lock(mutex_);
  return has_buckets_;
}

} // namespace weft::ddp
