#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::ddp {

/// The maximum sizes of buckets.
/// Unit: bytes.
struct BucketCaps {
  /// The cap of the first bucket of each group. It is small, so that
  /// communication starts early in backward.
  int64_t first = 0;
  int64_t rest = 0;
  /// The caps of the first buckets of each group, in order, in place of
  /// `first`. The other buckets use `rest`.
  std::vector<int64_t> each = {};

  /// Returns the cap of the bucket at `index` of its group.
  int64_t of(size_t index) const;
};

/// Returns PyTorch's caps: 25 MiB, and 1 MiB for the first bucket. A `cap_mb`
/// from the user also applies to the first bucket; `cap_mb_list` applies to the
/// first buckets. Unit of both: MiB.
/// Throws: c10::ValueError unless every cap is a positive number.
BucketCaps bucket_caps(
    std::optional<double> cap_mb,
    const std::vector<double>& cap_mb_list = {});

/// A gradient as seen by the planning.
struct BucketItem {
  int64_t bytes = 0;
  /// The group. Gradients of different groups never share a bucket.
  int64_t group = 0;
};

/// Splits the gradients in `order` (indices into `items`) into buckets of at
/// most the cap; a gradient above the cap gets its own bucket. Buckets are in
/// the order in which they fill up, their gradients in the given order.
/// Deterministic.
/// Source: torch/csrc/distributed/c10d/reducer.cpp,
/// compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> plan_buckets(
    const std::vector<BucketItem>& items,
    const std::vector<size_t>& order,
    const BucketCaps& caps);

} // namespace weft::ddp
