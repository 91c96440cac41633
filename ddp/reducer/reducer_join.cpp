// Reductions in which some replicas have no inputs. See Note [Shadowing ranks]
// in ddp_join.cpp.
#include <exception>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/torch.h>

#include "ddp/reducer/reducer.h"

namespace weft::ddp {

void Reducer::set_join(std::shared_ptr<JoinReducerHook> join) {
  const std::lock_guard lock(mutex_);
  join_ = std::move(join);
  // A failed Join leaves a backward unfinished.
  if (!join_ && (is_join_begun_ || (is_running_ && !is_launched_))) {
    clear();
  }
}

void Reducer::drop_gradients() {
  const std::lock_guard lock(mutex_);
  for (auto& parameter : parameters_) {
    set_gradient(parameter, at::Tensor());
    parameter.is_used = false;
  }
}

void Reducer::begin_join() {
  if (join_ && !std::exchange(is_join_begun_, true)) {
    join_->begin();
  }
}

void Reducer::shadow_reachable() {
  const std::lock_guard lock(mutex_);
  all_reduce_reachable(false);
}

void Reducer::shadow_backward(const std::function<void()>& meanwhile) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const auto end = c10::make_scope_exit([this] {
    clear();
    is_shadow_ = false;
  });
  if (!join_) {
    drop_failed_backward();
  }
  is_shadow_ = true;
  is_join_begun_ = true;
  std::exception_ptr error;
  if (has_buckets_) {
    copy_accumulated_to_bucket();
    reduce_all();
    try {
      meanwhile();
    } catch (...) { // The other replicas' reductions need this rank.
      error = std::current_exception();
    }
  } else {
    // The other replicas make buckets after their gradients are complete.
    meanwhile();
    join_->confirm();
    make_buckets();
    copy_accumulated_to_bucket();
    launch_remaining();
  }
  finish_backward();
  if (error) {
    std::rethrow_exception(error);
  }
}

void Reducer::copy_accumulated_to_bucket() {
  for (auto& parameter : parameters_) {
    parameter.is_ready = true;
    if (parameter.is_used && gradient(parameter).defined()) {
      copy_to_bucket(parameter);
      continue;
    }
    // Drops the result of an earlier reduction, because a shadow does not call
    // zero_grad().
    set_gradient(parameter, at::Tensor());
    if (parameter.bucket) {
      buckets_[*parameter.bucket].fill_with_zeros(parameter.slot);
    } else if (!join_ && parameter.is_used_anywhere) {
      set_gradient(parameter, at::zeros_like(parameter.state.tensor));
    }
  }
}

} // namespace weft::ddp
