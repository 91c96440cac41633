#include "data_parallel/comm_hooks/power_sgd_memory.h"

#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/comm_hooks/bucket_views.h"
#include "data_parallel/comm_hooks/hook_state.h"

namespace weft::data_parallel {
namespace {

constexpr const char* kErrorPrefix = "error.";
constexpr const char* kQPrefix = "q.";

at::Tensor find(
    const std::map<size_t, at::Tensor>& tensors,
    const char* what,
    const GradBucket& bucket,
    int64_t numel) {
  const auto found = tensors.find(bucket.index);
  if (found == tensors.end()) {
    return {};
  }
  WEFT_CHECK(
      found->second.numel() == numel,
      "powerSGD",
      describe(bucket),
      "the state's entry \"",
      what,
      bucket.index,
      "\" has ",
      found->second.numel(),
      " elements, but this bucket needs ",
      numel,
      ". Resume with the hook, the matrix_approximation_rank and the bucket "
      "layout that the state was saved with.");
  return found->second;
}

std::optional<size_t> index_in(
    const std::string& key,
    const std::string& prefix) {
  if (!key.starts_with(prefix)) {
    return std::nullopt;
  }
  size_t index = 0;
  const char* end = key.data() + key.size();
  const auto [rest, error] =
      std::from_chars(key.data() + prefix.size(), end, index);
  return error == std::errc() && rest == end ? std::optional(index)
                                             : std::nullopt;
}

} // namespace

PowerSGDMemory::PowerSGDMemory(uint32_t random_seed) {
  seed_rng(random_seed, 0);
}

at::Tensor PowerSGDMemory::error(const GradBucket& bucket, int64_t numel)
    const {
  return find(errors_, kErrorPrefix, bucket, numel);
}

at::Tensor PowerSGDMemory::q(const GradBucket& bucket, int64_t numel) const {
  return find(qs_, kQPrefix, bucket, numel);
}

void PowerSGDMemory::keep_error(size_t bucket, at::Tensor error) {
  errors_[bucket] = std::move(error);
}

void PowerSGDMemory::keep_q(size_t bucket, at::Tensor q) {
  qs_[bucket] = std::move(q);
}

void PowerSGDMemory::forget_buckets() {
  errors_.clear();
  qs_.clear();
}

uint64_t PowerSGDMemory::next_seed() {
  constexpr uint32_t kEnd = 1'000'000'000;
  constexpr uint32_t kMask = (1U << 30U) - 1;
  uint32_t value = 0;
  do {
    value = static_cast<uint32_t>(rng_()) & kMask;
    ++draws_;
  } while (value >= kEnd);
  return value;
}

void PowerSGDMemory::seed_rng(uint32_t seed, int64_t draws) {
  seed_ = seed;
  draws_ = draws;
  rng_.seed(seed);
  rng_.discard(static_cast<unsigned long long>(draws));
}

CommHook::State PowerSGDMemory::state_dict() const {
  CommHook::State state{
      {"iter", to_entry({iter})},
      {"rng", to_entry({seed_, draws_})},
      {"compression_stats",
       to_entry(
           {stats.numel_before_compression,
            stats.numel_after_compression,
            stats.bytes_before_compression,
            stats.bytes_after_compression,
            next_stats_report})}};
  for (const auto& [bucket, error] : errors_) {
    state[kErrorPrefix + std::to_string(bucket)] = error;
  }
  for (const auto& [bucket, q] : qs_) {
    state[kQPrefix + std::to_string(bucket)] = q;
  }
  return state;
}

bool PowerSGDMemory::load_tensor(
    const CommHook& hook,
    const std::string& key,
    const at::Tensor& tensor) {
  for (const auto& [prefix, tensors] :
       {std::pair(kErrorPrefix, &errors_), std::pair(kQPrefix, &qs_)}) {
    if (const auto index = index_in(key, prefix)) {
      WEFT_CHECK(
          tensor.defined() && tensor.dim() == 1 && tensor.is_floating_point(),
          "ddp",
          mesh::ErrorContext{"comm hook " + hook.name()},
          "the entry \"",
          key,
          "\" of the hook's state must be a 1-d floating-point tensor.");
      (*tensors)[*index] = tensor.detach().clone();
      return true;
    }
  }
  return false;
}

void PowerSGDMemory::load_stats(const std::vector<int64_t>& counts) {
  stats = {
      .numel_before_compression = counts[0],
      .numel_after_compression = counts[1],
      .bytes_before_compression = counts[2],
      .bytes_after_compression = counts[3]};
  next_stats_report = counts[4];
}

void PowerSGDMemory::load_state_dict(
    const CommHook& hook,
    const CommHook::State& state) {
  const auto rng = numbers_of(hook, state, "rng", 2);
  const auto where = [&] {
    return mesh::ErrorContext{"comm hook " + hook.name()};
  };
  WEFT_CHECK(
      rng[0] >= 0 && rng[0] <= std::numeric_limits<uint32_t>::max() &&
          rng[1] >= 0,
      "ddp",
      where(),
      "the entry \"rng\" of the hook's state must hold a 32-bit seed and a "
      "number of draws, got ",
      rng[0],
      ", ",
      rng[1],
      ".");
  PowerSGDMemory loaded(static_cast<uint32_t>(rng[0]));
  loaded.seed_rng(loaded.seed_, rng[1]);
  loaded.iter = numbers_of(hook, state, "iter", 1).front();
  loaded.load_stats(numbers_of(hook, state, "compression_stats", 5));
  for (const auto& [key, tensor] : state) {
    if (key != "rng" && key != "iter" && key != "compression_stats" &&
        !loaded.load_tensor(hook, key, tensor)) {
      throw_bad_entry(hook, key);
    }
  }
  *this = std::move(loaded);
}

} // namespace weft::data_parallel
