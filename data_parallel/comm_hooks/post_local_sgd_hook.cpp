#include "data_parallel/comm_hooks/post_local_sgd_hook.h"

#include <algorithm>
#include <string>
#include <utility>

#include "data_parallel/comm_hooks/bucket_views.h"
#include "data_parallel/comm_hooks/hook_state.h"

namespace weft::data_parallel {
namespace {

constexpr const char* kHookName = "post_localSGD_hook";

class PostLocalSGDHook : public CommHook {
 public:
  explicit PostLocalSGDHook(PostLocalSGDState state)
      : state_(std::move(state)) {
    WEFT_CHECK(
        state_.start_localSGD_iter >= 0,
        kHookName,
        mesh::ErrorContext{"comm hook"},
        "start_localSGD_iter: got ",
        state_.start_localSGD_iter,
        ", expected at least 0. It is the number of first steps that average "
        "over all replicas.");
  }

  std::string name() const override { return kHookName; }
  bool divides() const override { return true; }
  bool can_be_tried() const override { return false; }

  BucketFuture run(const GradBucket& bucket) override {
    check_subgroup(bucket);
    if (iter_ < state_.start_localSGD_iter) {
      iter_ += bucket.is_last;
      return start_average(bucket.buffer, bucket.group, label_of(bucket));
    }
    if (!state_.post_local_gradient_allreduce) {
      return BucketFuture(bucket.buffer);
    }
    return start_average(bucket.buffer, state_.subgroup, label_of(bucket));
  }

  State state_dict() const override { return {{"iter", to_entry({iter_})}}; }

  void load_state_dict(const State& state) override {
    for (const auto& [key, tensor] : state) {
      if (key != "iter") {
        throw_bad_entry(*this, key);
      }
    }
    iter_ = numbers_of(*this, state, "iter", 1).front();
  }

 private:
  /// Throws if a rank of the subgroup is not a replica. Runs from the first
  /// step on, not only when the subgroup is used.
  void check_subgroup(const GradBucket& bucket) const {
    const auto& replicas = bucket.group.ranks();
    for (const int64_t rank : state_.subgroup.ranks()) {
      WEFT_CHECK(
          std::find(replicas.begin(), replicas.end(), rank) != replicas.end(),
          kHookName,
          describe(bucket),
          "the subgroup \"",
          state_.subgroup.name(),
          "\" has rank ",
          rank,
          " of the world, which is not one of the replicas. Create the "
          "subgroup from the replicas' ranks, e.g. with new_subgroups().");
    }
  }

  PostLocalSGDState state_;
  /// The number of steps so far. It stops counting when local SGD starts.
  int64_t iter_ = 0;
};

} // namespace

std::shared_ptr<CommHook> post_localSGD_hook(PostLocalSGDState state) {
  return std::make_shared<PostLocalSGDHook>(std::move(state));
}

} // namespace weft::data_parallel
