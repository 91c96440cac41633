#include "data_parallel/comm_hooks/comm_hook.h"

#include <cmath>
#include <utility>

#include <torch/torch.h>

#include "mesh/error/error.h"

namespace weft::data_parallel {
namespace {

class FunctionHook : public CommHook {
 public:
  FunctionHook(
      std::string name,
      bool divides,
      std::function<BucketFuture(const GradBucket&)> run)
      : name_(std::move(name)), divides_(divides), run_(std::move(run)) {}

  std::string name() const override { return name_; }
  bool divides() const override { return divides_; }
  BucketFuture run(const GradBucket& bucket) override { return run_(bucket); }

 private:
  std::string name_;
  bool divides_;
  std::function<BucketFuture(const GradBucket&)> run_;
};

} // namespace

BucketFuture::BucketFuture(at::Tensor value)
    : wait_([value = std::move(value)] { return value; }) {}

BucketFuture::BucketFuture(mesh::Work work, at::Tensor value)
    : wait_([work = std::move(work), value = std::move(value)]() mutable {
        work.wait();
        return value;
      }) {}

BucketFuture::BucketFuture(std::function<at::Tensor()> wait)
    : wait_(std::move(wait)) {}

BucketFuture BucketFuture::then(
    std::function<at::Tensor(const at::Tensor&)> next) && {
  return BucketFuture([before = std::move(wait_), next = std::move(next)] {
    return next(before());
  });
}

at::Tensor BucketFuture::wait() {
  return std::exchange(wait_, nullptr)();
}

void CommHook::load_state_dict(const State& state) {
  WEFT_CHECK(
      state.empty(),
      "ddp",
      mesh::ErrorContext{"comm hook " + name()},
      "this hook has no state, but ",
      state.size(),
      " entries were given. Register the hook that the state was saved with.");
}

void check_declaration(
    CommHook& hook,
    const mesh::Communicator& group,
    c10::Device device) {
  const auto n = static_cast<double>(group.size());
  const auto ones = at::ones({4}, at::device(device));
  const GradBucket bucket{
      .index = 0,
      .is_last = true,
      .buffer = ones.clone(),
      .gradients = {ones},
      .parameters = {ones},
      .names = {"(a trial)"},
      .group = group};
  const auto result = hook.run(bucket).wait();
  const auto what = [&] { return mesh::ErrorContext{"hook " + hook.name()}; };
  WEFT_CHECK(
      result.defined() && result.sizes() == ones.sizes() &&
          result.scalar_type() == ones.scalar_type(),
      "register_comm_hook",
      what(),
      "the hook was tested on a bucket of 4 floats and returned a tensor of "
      "another shape or dtype. Return bucket.buffer or a tensor like it.");
  if (result.is_meta()) {
    return;
  }
  const double expected = hook.divides() ? 1.0 : n;
  const double value = result.to(at::kDouble).mean().item<double>();
  WEFT_CHECK(
      std::abs(value - expected) < 0.05 * expected,
      "register_comm_hook",
      what(),
      "the hook declares that it ",
      hook.divides() ? "divides" : "does not divide",
      " by the number of replicas, but for a bucket of ones on ",
      n,
      " replicas, it returned ",
      value,
      " instead of ",
      expected,
      hook.divides() ? ": the gradients would not be divided. "
                     : ": gradients would be divided twice. ",
      "Have divides() say what run() does.");
}

std::shared_ptr<CommHook> make_comm_hook(
    std::string name,
    bool divides,
    std::function<BucketFuture(const GradBucket&)> run) {
  return std::make_shared<FunctionHook>(
      std::move(name), divides, std::move(run));
}

} // namespace weft::data_parallel
