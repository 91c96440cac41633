// Reductions in which some replicas have no inputs. See Note [Shadows] in
// join/ddp_join.cpp.
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/torch.h>

#include "ddp/reducer.h"

namespace weft::ddp {

void Reducer::set_join(std::shared_ptr<JoinedReduction> join) {
  const std::lock_guard lock(mutex_);
  join_ = std::move(join);
}

void Reducer::begin_join() {
  if (join_ && !std::exchange(is_join_begun_, true)) {
    join_->begin();
  }
}

void Reducer::shadow_reach() {
  const std::lock_guard lock(mutex_);
  send_reach(false);
}

void Reducer::shadow_backward(const std::function<void()>& meanwhile) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const auto end = c10::make_scope_exit([this] {
    clear();
    is_shadow_ = false;
  });
  is_shadow_ = true;
  is_join_begun_ = true;
  if (has_buckets_) {
    put_accumulated();
    reduce_all();
    meanwhile();
  } else {
    // The others make buckets once their gradients have come.
    meanwhile();
    join_->confirm();
    make_buckets();
    put_accumulated();
    launch_remaining();
  }
  finish_backward();
}

void Reducer::put_accumulated() {
  for (auto& parameter : parameters_) {
    parameter.is_ready = true;
    if (!parameter.bucket) {
      continue;
    }
    const auto grad = gradient(parameter);
    if (parameter.is_used && grad.defined()) {
      put(parameter);
      continue;
    }
    if (grad.defined() && may_be_missing(parameter)) {
      parameter.untouched = local_part(grad).clone();
    }
    buckets_[*parameter.bucket].put_nothing(parameter.slot);
  }
}

} // namespace weft::ddp
