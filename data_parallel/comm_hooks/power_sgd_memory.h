#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/power_sgd_hook.h"

namespace weft::data_parallel {

/// PowerSGD's state between steps. Its tensors are never changed in place.
class PowerSGDMemory {
 public:
  explicit PowerSGDMemory(uint32_t random_seed);

  /// Returns the error of a bucket: flat, in the dtype of computation,
  /// undefined if there is none.
  /// Throws: c10::ValueError if it does not have `numel` elements.
  at::Tensor error(const GradBucket& bucket, int64_t numel) const;
  at::Tensor q(const GradBucket& bucket, int64_t numel) const;
  void keep_error(size_t bucket, at::Tensor error);
  void keep_q(size_t bucket, at::Tensor q);
  void forget_buckets();

  /// Returns a new seed for random matrices at every call, identical on all
  /// ranks: numpy's RandomState(random_seed).randint(1_000_000_000).
  uint64_t next_seed();

  CommHook::State state_dict() const;
  void load_state_dict(const CommHook& hook, const CommHook::State& state);

  int64_t iter = 0;
  CompressionStats stats;
  int64_t next_stats_report = 0;

 private:
  using Tensors = std::map<size_t, at::Tensor>;

  void seed_rng(uint32_t seed, int64_t draws);
  void load_stats(const std::vector<int64_t>& counts);
  bool load_tensor(
      const CommHook& hook,
      const std::string& key,
      const at::Tensor& tensor);

  uint32_t seed_ = 0;
  /// The number of draws from the generator.
  int64_t draws_ = 0;
  std::mt19937 rng_;
  Tensors errors_;
  Tensors qs_;
};

} // namespace weft::data_parallel
