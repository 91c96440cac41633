#include "data_parallel/comm_hooks/power_sgd_hook.h"

#include "data_parallel/comm_hooks/power_sgd.h"

namespace weft::data_parallel {

PowerSGDHook::PowerSGDHook(const PowerSGDOptions& options, Layout layout)
    : algorithm_(
          std::make_shared<PowerSGD>(options, layout == Layout::kSquare)) {}

PowerSGDHook::PowerSGDHook(const PowerSGDOptions& options)
    : PowerSGDHook(options, Layout::kGradients) {}

PowerSGDHook::~PowerSGDHook() = default;

std::string PowerSGDHook::name() const {
  return algorithm_->name();
}

BucketFuture PowerSGDHook::run(const GradBucket& bucket) {
  return algorithm_->run(bucket);
}

void PowerSGDHook::on_rebuilt_buckets() {
  algorithm_->memory().forget_buckets();
}

CompressionStats PowerSGDHook::compression_stats() const {
  auto stats = algorithm_->memory().stats;
  if (stats.numel_after_compression > 0) {
    stats.compress_rate = static_cast<double>(stats.numel_before_compression) /
                          static_cast<double>(stats.numel_after_compression);
  }
  return stats;
}

CommHook::State PowerSGDHook::state_dict() const {
  return algorithm_->memory().state_dict();
}

void PowerSGDHook::load_state_dict(const State& state) {
  algorithm_->memory().load_state_dict(*this, state);
}

BatchedPowerSGDHook::BatchedPowerSGDHook(const PowerSGDOptions& options)
    : PowerSGDHook(options, Layout::kSquare) {}

} // namespace weft::data_parallel
