#include "data_parallel/comm_hooks/default_hooks.h"

#include <string>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/comm_hooks/bucket_views.h"

namespace weft::data_parallel {
namespace {

class NoopHook : public CommHook {
 public:
  std::string name() const override { return "noop_hook"; }
  /// Keeps DDP from dividing the gradients, which this hook does not reduce.
  bool divides() const override { return true; }
  BucketFuture run(const GradBucket& bucket) override {
    return BucketFuture(bucket.buffer);
  }
  bool can_be_tried() const override { return false; }
};

std::string short_name(at::ScalarType dtype) {
  return dtype == at::kHalf ? "fp16" : "bf16";
}

std::shared_ptr<CommHook> make_compress_hook(at::ScalarType dtype) {
  auto name = short_name(dtype) + "_compress_hook";
  return make_comm_hook(
      name, /*divides=*/true, [dtype, name](const GradBucket& bucket) {
        check_can_compress(bucket, name);
        const auto compressed = bucket.buffer.to(dtype);
        return start_average(compressed, bucket.group, label_of(bucket))
            .then([buffer = bucket.buffer](const at::Tensor& average) {
              return at::Tensor(buffer).copy_(average);
            });
      });
}

class CompressWrapper : public CommHook {
 public:
  CompressWrapper(at::ScalarType dtype, std::shared_ptr<CommHook> inner)
      : dtype_(dtype), inner_(std::move(inner)) {
    WEFT_CHECK(
        inner_ != nullptr,
        short_name(dtype) + "_compress_wrapper",
        mesh::ErrorContext{"comm hook"},
        "the inner hook is null. Pass the hook that is to reduce the cast "
        "bucket, e.g. allreduce_hook().");
  }

  std::string name() const override {
    return short_name(dtype_) + "_compress_wrapper(" + inner_->name() + ")";
  }
  bool divides() const override { return inner_->divides(); }

  BucketFuture run(const GradBucket& bucket) override {
    check_can_compress(bucket, name());
    auto cast = bucket;
    cast.buffer = bucket.buffer.to(dtype_);
    cast.gradients = gradients_in(cast.buffer, bucket);
    return inner_->run(cast).then(
        [buffer = bucket.buffer](const at::Tensor& result) {
          return at::Tensor(buffer).copy_(result);
        });
  }

  void on_rebuilt_buckets() override { inner_->on_rebuilt_buckets(); }
  bool can_be_tried() const override { return inner_->can_be_tried(); }
  State state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const State& state) override {
    inner_->load_state_dict(state);
  }

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CommHook> inner_;
};

} // namespace

std::shared_ptr<CommHook> allreduce_hook() {
  return make_comm_hook(
      "allreduce_hook", /*divides=*/true, [](const GradBucket& bucket) {
        return start_average(bucket.buffer, bucket.group, label_of(bucket));
      });
}

std::shared_ptr<CommHook> all_reduce_by_sum() {
  return make_comm_hook(
      "all_reduce_by_sum", /*divides=*/false, [](const GradBucket& bucket) {
        auto group = bucket.group;
        return BucketFuture(
            group.all_reduce(
                bucket.buffer, mesh::ReduceOp::kSum, label_of(bucket)),
            bucket.buffer);
      });
}

std::shared_ptr<CommHook> noop_hook() {
  return std::make_shared<NoopHook>();
}

std::shared_ptr<CommHook> fp16_compress_hook() {
  return make_compress_hook(at::kHalf);
}

std::shared_ptr<CommHook> bf16_compress_hook() {
  return make_compress_hook(at::kBFloat16);
}

std::shared_ptr<CommHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>(at::kHalf, std::move(inner));
}

std::shared_ptr<CommHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>(at::kBFloat16, std::move(inner));
}

} // namespace weft::data_parallel
