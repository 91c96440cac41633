#include "data_parallel/comm_hooks/comm_hook.h"

#include <utility>

#include "mesh/error/error.h"

namespace weft::ddp {
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

std::shared_ptr<CommHook> make_comm_hook(
    std::string name,
    bool divides,
    std::function<BucketFuture(const GradBucket&)> run) {
  return std::make_shared<FunctionHook>(
      std::move(name), divides, std::move(run));
}

} // namespace weft::ddp
