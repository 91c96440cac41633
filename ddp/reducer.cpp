#include "ddp/reducer.h"

#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "dtensor/gradient.h"
#include "dtensor/parameter_info.h"
#include "mesh/error.h"

// Note [Order of reductions]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// All replicas must reduce the same buckets in the same order, whatever the
// order in which their gradients arrive. Bucket i is launched once it is full
// and bucket i - 1 was launched. How gradients arrive is known after the first
// backward: nothing is reduced before its end; there the replicas adopt the
// first one's order, buckets are made from it, once, and all are reduced.
// Later backward passes reduce while they run, and wait at their end.
//
// A replica that misses a gradient must not leave the others waiting. It puts
// zeros in its place, goes on, and raises a flag, one more element of the last
// bucket; so all replicas learn of it, exchange names and fail alike.
//
// Launches and waits happen on the thread that runs backward, at places that
// the graph decides, so tensor-parallel collectives, which have groups of
// their own, come in the same order on all ranks too.

// Note [Pending sums]
// ~~~~~~~~~~~~~~~~~~~
// A parameter whose gradient is a pending sum over tensor-parallel ranks has it
// reduced here rather than by dtensor/gradient.cpp: such gradients share
// buckets of their own, which at the end of backward are summed over their mesh
// and then reduced over the replicas. Under no_sync() they stay pending sums.
// These buckets follow the reversed order of parameters, which is the same on
// all ranks of the mesh by construction.

namespace weft::ddp {

std::shared_ptr<Reducer> Reducer::create(
    std::vector<NamedTensor> parameters,
    const mesh::DeviceMesh& dp,
    const ReducerOptions& options,
    std::shared_ptr<const std::atomic<int>> paused) {
  std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(parameters), dp, options, std::move(paused)));
  std::vector<at::Tensor> leaves;
  for (const auto& parameter : reducer->parameters_) {
    leaves.push_back(parameter.state.tensor);
  }
  const std::weak_ptr<Reducer> weak = reducer;
  reducer->hooks_ = std::make_unique<GradientHooks>(leaves, [weak](size_t i) {
    if (const auto self = weak.lock()) {
      self->on_gradient(i);
    }
  });
  return reducer;
}

Reducer::Reducer(
    std::vector<NamedTensor> parameters,
    const mesh::DeviceMesh& dp,
    const ReducerOptions& options,
    std::shared_ptr<const std::atomic<int>> paused)
    : dp_(dp),
      options_(options),
      paused_(std::move(paused)),
      device_(local_part(parameters.at(0).tensor).device()) {
  for (auto& item : parameters) {
    if (const auto* impl = dtensor::dtensor_impl(item.tensor);
        impl && impl->spec().mesh_ndim() > 0) {
      dtensor::parameter_info(item.tensor).gradient_reduced_elsewhere = true;
      dtensor::keep_gradient_placed(item.tensor);
    }
    names_.push_back(item.name);
    Parameter parameter;
    parameter.state = std::move(item);
    parameters_.push_back(std::move(parameter));
  }
}

Reducer::~Reducer() {
  for (const auto& parameter : parameters_) {
    if (dtensor::dtensor_impl(parameter.state.tensor)) {
      dtensor::parameter_info(parameter.state.tensor)
          .gradient_reduced_elsewhere = false;
    }
  }
}

double Reducer::divisor() const {
  return options_.reduce_op == mesh::ReduceOp::kAvg
             ? static_cast<double>(dp_.size())
             : 1.0;
}

Replicas Reducer::replicas() const {
  return {.dp = dp_, .names = names_, .device = device_};
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) {
    return;
  }
  const std::weak_ptr<Reducer> weak = weak_from_this();
  output.register_hook([weak](const at::Tensor&) {
    if (const auto self = weak.lock(); self && *self->paused_ == 0) {
      const std::lock_guard lock(self->mutex_);
      self->end_backward_here();
    }
  });
}

void Reducer::end_backward_here() {
  if (!ends_here_) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->finish_backward(); });
    ends_here_ = true;
  }
}

void Reducer::on_gradient(size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  auto& parameter = parameters_[index];
  const auto& gradient = parameter.state.tensor.grad();
  if (!gradient.defined()) {
    return;
  }
  if (*paused_ != 0) {
    // Into the bucket right away, or it would lie in memory twice.
    if (parameter.bucket && options_.gradient_as_bucket_view) {
      put(parameter, 1.0);
    }
    return;
  }
  WEFT_CHECK(
      !parameter.is_ready,
      "ddp",
      mesh::ErrorContext{dp_.describe_rank()},
      "the gradient of ",
      parameter.state.name,
      " became ready twice in one backward. A parameter used both inside and "
      "outside of a nested backward (re-entrant checkpointing) does that; so "
      "does a new backward after one that failed, without a forward between.");
  end_backward_here();
  parameter.is_ready = true;
  ready_.push_back(index);
  if (has_buckets_) {
    put(parameter, divisor());
    if (parameter.bucket) {
      --waiting_for_[*parameter.bucket];
      launch_full_buckets();
    }
  }
}

void Reducer::launch_full_buckets() {
  while (launched_ < pending_begin_ && waiting_for_[launched_] == 0) {
    launch(launched_);
  }
}

void Reducer::launch(size_t bucket) {
  const auto name =
      mesh::detail::concat("ddp bucket ", bucket, "/", buckets_.size());
  if (dp_.size() > 1) {
    works_.push_back(
        dp_.group(int64_t{0})
            .all_reduce(buckets_[bucket].flat(), mesh::ReduceOp::kSum, name));
  }
  launched_ = bucket + 1;
}

void Reducer::reduce_pending_sums(size_t bucket) {
  const auto& spec = *buckets_[bucket].pending();
  const auto name = mesh::detail::concat(
      "ddp bucket ", bucket, "/", buckets_.size(), " pending sums");
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_partial()) {
      spec.mesh()
          .group(i)
          .all_reduce(buckets_[bucket].flat(), mesh::ReduceOp::kSum, name)
          .wait();
    }
  }
}

void Reducer::reduce_remaining() {
  for (const auto& parameter : parameters_) {
    if (!parameter.is_ready && parameter.bucket) {
      buckets_[*parameter.bucket].put_nothing(parameter.slot);
    }
  }
  // If nothing is missing the last bucket may be under way already.
  if (!buckets_.empty() && ready_.size() < parameters_.size()) {
    buckets_.back().raise_flag();
  }
  while (launched_ < buckets_.size()) {
    if (launched_ >= pending_begin_) {
      reduce_pending_sums(launched_);
    }
    launch(launched_);
  }
  for (auto& work : works_) {
    work.wait();
  }
}

bool Reducer::is_any_missing() const {
  return ready_.size() < parameters_.size() ||
         (!buckets_.empty() && buckets_.back().is_flag_raised());
}

void Reducer::lower_flag() {
  if (!buckets_.empty()) {
    buckets_.back().lower_flag();
  }
}

void Reducer::finish_backward() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const auto end = c10::make_scope_exit([this] { clear(); });
  if (ready_.empty()) {
    return;
  }
  if (!has_buckets_) {
    make_buckets();
    for (const auto& parameter : parameters_) {
      put(parameter, divisor());
    }
  }
  reduce_remaining();
  if (is_any_missing()) {
    lower_flag();
    throw_missing(replicas(), ready_);
  }
  publish();
}

void Reducer::clear() {
  for (auto& parameter : parameters_) {
    parameter.is_ready = false;
  }
  ready_.clear();
  works_.clear();
  launched_ = 0;
  ends_here_ = false;
  waiting_for_.clear();
  for (const auto& bucket : buckets_) {
    waiting_for_.push_back(bucket.slots().size());
  }
}

void Reducer::reset() {
  const std::lock_guard lock(mutex_);
  if (!ends_here_ && ready_.empty()) {
    return;
  }
  const auto end = c10::make_scope_exit([this] { clear(); });
  for (auto& work : works_) {
    work.wait();
  }
  lower_flag();
}

} // namespace weft::ddp
