#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::ddp {

/// How large buckets may grow. Unit: bytes.
struct BucketCaps {
  /// Of the first bucket of each group: small, so that communication starts
  /// early in backward.
  int64_t first = 0;
  int64_t rest = 0;
  /// Of the buckets of each group in turn, before `rest`; instead of `first`.
  std::vector<int64_t> each = {};

  /// Of the bucket that has `index` others of its group before it.
  int64_t of(size_t index) const;
};

/// PyTorch's caps: 25 MiB with a first bucket of 1 MiB; a cap that the user
/// gave holds for the first one too, and `cap_mb_list` for the first buckets.
/// Unit of both: MiB.
/// Throws: c10::ValueError unless every cap is a positive number.
BucketCaps bucket_caps(
    std::optional<double> cap_mb,
    const std::vector<double>& cap_mb_list = {});

/// A gradient as planning sees it.
struct BucketItem {
  int64_t bytes = 0;
  /// Only gradients of one group share a bucket.
  int64_t group = 0;
};

/// Splits the gradients named by `order` (indices into `items`) into buckets
/// that no gradient makes larger than the cap; one that is larger by itself
/// gets a bucket of its own. Buckets come in the order in which they become
/// full, their gradients in the order given. Pure.
/// Source: torch/csrc/distributed/c10d/reducer.cpp,
/// compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> plan_buckets(
    const std::vector<BucketItem>& items,
    const std::vector<size_t>& order,
    const BucketCaps& caps);

} // namespace weft::ddp
