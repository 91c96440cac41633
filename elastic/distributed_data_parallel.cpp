#include "elastic/distributed_data_parallel.h"

#include <string>
#include <utility>

#include <torch/nn/modules/embedding.h>

#include "mesh/error/error.h"

namespace weft::elastic::detail {
namespace {

class ManagerHook final : public data_parallel::CommHook {
 public:
  explicit ManagerHook(Manager& manager) : manager_(manager) {}

  std::string name() const override { return "elastic"; }
  bool divides() const override { return false; }
  /// The hook is registered before a step begins, so it cannot be tried.
  bool can_be_tried() const override { return false; }
  data_parallel::BucketFuture run(
      const data_parallel::GradBucket& bucket) override {
    auto wait = manager_.start_all_reduce(
        bucket.buffer, "bucket " + std::to_string(bucket.index));
    return data_parallel::BucketFuture(
        [wait = std::move(wait), sum = bucket.buffer]() mutable {
          wait();
          return sum;
        });
  }

 private:
  Manager& manager_;
};

} // namespace

ddp::DistributedDataParallelOptions checked_options(
    const mesh::DeviceMesh& dp_mesh,
    const ddp::DistributedDataParallelOptions& options) {
  const mesh::ErrorContext where{dp_mesh.describe_rank()};
  WEFT_CHECK(
      dp_mesh.size() == 1,
      "elastic",
      where,
      "mesh of replicas: got ",
      dp_mesh.size(),
      " ranks, expected 1. The replicas are the replica groups that weftrun "
      "--replica-size "
      "starts. Pass the dim of size 1 of a mesh {1, ranks of the group}.");
  const auto refuse = [&](bool is_set, const char* option, const char* why) {
    WEFT_CHECK(
        !is_set,
        "elastic",
        where,
        option,
        " cannot be combined with replica groups that come and go: ",
        why);
  };
  refuse(
      options.find_unused_parameters,
      "find_unused_parameters",
      "a group does not know which parameters the others use. Give every "
      "parameter a gradient in each step, for example 0 times the parameter.");
  refuse(
      options.auto_bucketing,
      "auto_bucketing",
      "the buckets of a new group would differ. Set bucket_cap_mb.");
  refuse(
      !options.parameter_groups.empty(),
      "parameter_groups",
      "they name ranks. Leave them out.");
  return options;
}

void check_gradients(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const auto* embedding = item.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBagImpl>();
    WEFT_CHECK(
        !(embedding && embedding->options.sparse()) &&
            !(bag && bag->options.sparse()),
        "elastic",
        mesh::ErrorContext(),
        item.key().empty() ? "the module" : "\"" + item.key() + "\"",
        " has sparse gradients, which are not added over replica groups. Set "
        "sparse to false.");
  }
}

std::shared_ptr<data_parallel::CommHook> make_comm_hook(Manager& manager) {
  return std::make_shared<ManagerHook>(manager);
}

} // namespace weft::elastic::detail
